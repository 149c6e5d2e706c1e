"""What a load generator notices about itself while it runs. Owns the CPU clock of its thread."""

from __future__ import annotations

import time

from ledgers.health import LATE_NS, SEND_NS, HealthSample
from ledgers.units import NS_PER_S
from loadgen.token_times import ReadCounts

_SHORTEST_SAMPLE_NS = NS_PER_S // 5
_SCHEDULER_FIGURES = "/proc/thread-self/schedstat"  # Linux: time on a core, time waiting for one (ns)


class Health:
    """Counts, from `start` on; `sample` says what there was since the last one."""

    def __init__(self) -> None:
        self.reads = ReadCounts()
        self._t0_ns = 0
        self._cpu_ns = 0
        self._waited_ns: int | None = 0
        self._reads = (0, 0)
        self._due_ns: int | None = None
        self._at_once = 0  # how many were due at that instant
        self._now = HealthSample(t_ns=0)

    def start(self, t0_ns: int) -> None:
        """Samples count from `t0_ns` (monotonic)."""
        self._t0_ns = t0_ns
        self._cpu_ns, self._waited_ns = time.thread_time_ns(), _waited_ns()

    def sending(self, due_ns: int, now_ns: int, *, again: bool = False) -> None:
        """A request that was due is handed to its connection; `again`: a further attempt."""
        now, lag_ns = self._now, now_ns - due_ns
        self._at_once = self._at_once + 1 if due_ns == self._due_ns else 0
        self._due_ns = due_ns
        now.sent += 1
        now.sends += 1
        now.retries += again
        now.in_flight += 1
        now.late_sends += lag_ns > LATE_NS + SEND_NS * self._at_once
        if lag_ns > now.send_lag_max_ns:
            now.send_lag_max_ns = lag_ns

    def ended(self, *, sent: bool = True) -> None:
        """A request is over; `sent` is False if nothing of it left after all."""
        self._now.in_flight -= 1
        self._now.sent -= not sent

    def loop_lag(self, lag_ns: int) -> None:
        """The loop ran something this long after its time."""
        self._now.loop_lag_max_ns = max(self._now.loop_lag_max_ns, lag_ns)

    def sample(self, now_ns: int, asked: int | None) -> HealthSample:
        """`asked` requests were due until now."""
        done, cpu_ns, waited_ns = self._now, time.thread_time_ns(), _waited_ns()
        elapsed_ns = now_ns - self._t0_ns - done.t_ns
        done.t_ns += elapsed_ns
        done.asked = asked
        if elapsed_ns >= _SHORTEST_SAMPLE_NS:
            done.cpu_share = (cpu_ns - self._cpu_ns) / elapsed_ns
            if waited_ns is not None and self._waited_ns is not None:
                done.starved_share = (waited_ns - self._waited_ns) / elapsed_ns
        reads = (self.reads.reads, self.reads.with_several_events)
        done.reads = reads[0] - self._reads[0]
        done.reads_with_several_events = reads[1] - self._reads[1]
        self._cpu_ns, self._waited_ns, self._reads = cpu_ns, waited_ns, reads
        self._now = HealthSample(
            t_ns=done.t_ns, sent=done.sent, retries=done.retries, in_flight=done.in_flight
        )
        return done


def _waited_ns() -> int | None:
    """How long this thread was ready to run while others had the cores; None where the system hides it."""
    try:
        with open(_SCHEDULER_FIGURES, "rb") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
