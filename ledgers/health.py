"""How a load generator fared itself, second by second, and whether that spoils what it measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from ledgers.units import NS_PER_MS

BUSY_CPU_SHARE = 0.9  # of one core: above it a process has no time left to be punctual
LATE_NS = 10 * NS_PER_MS  # a send this late moves a request by more than agreement tolerates
SEND_NS = NS_PER_MS // 20  # what each of several requests may take that are to leave at the same instant
LATE_SHARE = 0.01
_STARVED_SHARE = 0.3  # of the time: it was ready to run, and others had the cores
_STALL_NS = 200 * NS_PER_MS
_LAG_NS = 50 * NS_PER_MS
_LAGGED_SHARE = 0.05
_SPOILED_SHARE = 0.05


class HealthSample(msgspec.Struct, kw_only=True):
    """What happened since the sample before; `asked`, `sent`, `retries` count from t0, `in_flight` is now.

    `asked` requests were due by `t_ns`, further attempts aside; None in a closed loop. `sends` left since the
    last sample, `late_sends` of them by more than LATE_NS too late. `cpu_share` is of one core, and
    `starved_share` how much of the time the thread waited for one; None over too short a time or where the
    system does not tell. `reads` are those with generated output. Of several `processes` it is that of all,
    and the worst of their lags and shares; `lost_processes` died. `reasons` say why the figures of this time
    are the client's.
    """

    t_ns: int
    processes: int = 1
    lost_processes: int = 0
    asked: int | None = None
    sent: int = 0
    retries: int = 0
    in_flight: int = 0
    sends: int = 0
    late_sends: int = 0
    send_lag_max_ns: int = 0
    loop_lag_max_ns: int = 0
    cpu_share: float | None = None
    starved_share: float | None = None
    reads: int = 0
    reads_with_several_events: int = 0
    verdict: Literal["ok", "client-limited"] | None = None
    reasons: list[str] = []

    def judge(self) -> None:
        """Fill in the verdict."""
        self.reasons = _reasons(self)
        self.verdict = "client-limited" if self.reasons else "ok"


_SUMMED = (
    "processes",
    "lost_processes",
    "sent",
    "retries",
    "in_flight",
    "sends",
    "late_sends",
    "reads",
    "reads_with_several_events",
)
_WORST = ("t_ns", "send_lag_max_ns", "loop_lag_max_ns", "cpu_share", "starved_share")


def merged(samples: Sequence[HealthSample]) -> HealthSample:
    """The samples that several processes took at about the same time, as one."""
    asked = _known(samples, "asked")
    summed: dict[str, Any] = {name: sum(_known(samples, name)) for name in _SUMMED}
    worst: dict[str, Any] = {name: max(_known(samples, name), default=None) for name in _WORST}
    return HealthSample(asked=sum(asked) if asked else None, **summed, **worst)


def _known(samples: Sequence[HealthSample], name: str) -> list[Any]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def stalled_ns(sample: HealthSample) -> int | None:
    """For how long the client did not run while there was something to do; None if nothing came of it.

    Stamps of the kernel do not mind a short absence. A long one has several tokens in one read, of which all
    but the last are dated too late, or it delays what should have left.
    """
    touched = sample.reads_with_several_events or sample.late_sends
    return sample.loop_lag_max_ns if sample.loop_lag_max_ns >= _STALL_NS and touched else None


def absences(samples: Sequence[HealthSample]) -> list[tuple[int, int]]:
    """The times, from one sample to the next, in which the client did not run for long."""
    begins = [0, *(sample.t_ns for sample in samples)]
    return [
        (begin, sample.t_ns)
        for begin, sample in zip(begins, samples, strict=False)
        if sample.loop_lag_max_ns >= _STALL_NS
    ]


def spoiled(samples: Sequence[HealthSample]) -> list[HealthSample]:
    """The client-limited ones, if they are more than one in twenty: a single hiccup is no bottleneck."""
    found = [sample for sample in samples if sample.reasons]
    return found if len(found) > 1 and len(found) > _SPOILED_SHARE * len(samples) else []


def _reasons(sample: HealthSample) -> list[str]:
    reasons = []
    if sample.lost_processes:
        reasons.append(f"{sample.lost_processes} of its processes died")
    if (stall_ns := stalled_ns(sample)) is not None:
        reasons.append(f"it did not run for {stall_ns / NS_PER_MS:.0f} ms")
    elif sample.loop_lag_max_ns >= _LAG_NS and (
        sample.reads_with_several_events > _LAGGED_SHARE * sample.reads
    ):
        reasons.append(
            f"it ran up to {sample.loop_lag_max_ns / NS_PER_MS:.0f} ms late, and read tokens together"
        )
    if sample.late_sends > 1 and sample.late_sends > LATE_SHARE * sample.sends:
        late = f"more than {LATE_NS // NS_PER_MS} ms late"
        reasons.append(f"{sample.late_sends} of {sample.sends} requests left {late}")
    if sample.cpu_share is not None and sample.cpu_share > BUSY_CPU_SHARE:
        reasons.append(f"it used {sample.cpu_share:.0%} of a core")
    if sample.starved_share is not None and sample.starved_share > _STARVED_SHARE:
        reasons.append(f"it waited for a core {sample.starved_share:.0%} of the time")
    return reasons
