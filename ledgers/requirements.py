"""What a user requires of a run, as in `class=short e2e.p95<=1500`: its grammar, and whether a run meets it.

Pure. A percentile is required of all requests and not of those that completed: `ttft.p95<=200` says that of
every 100 that were scheduled 95 had their first token within 200 ms. Who failed, was rejected or has not
ended by the end of the window is a miss, so nobody is within a limit by not being served.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

import msgspec

from ledgers.distributions import rank
from ledgers.errors import InputError
from ledgers.formats.fields import shown
from ledgers.metrics import Observations
from ledgers.rows import FAILURES, Outcome
from ledgers.units import NS_PER_MS, NS_PER_S, exact

LATENCIES = ("queue_delay", "ttft", "ttfc", "tpot", "e2e")
AT_LEAST = ("attainment", "goodput", "throughput")
AT_MOST = ("error_rate",)
SHARES = ("attainment", "error_rate")
GRAMMAR = (
    "[class=NAME ]METRIC<=NUMBER, where METRIC is ttft, tpot, e2e, ttfc or queue_delay with .pNN, .mean or "
    ".max (ms, <= or <), attainment, goodput or throughput (>= or >), or error_rate (<= or <)"
)
_REQUIREMENT = re.compile(
    r"(?:class=(?P<class>\S+)\s+)?(?P<metric>[a-z_0-9]+)(?:\.(?P<statistic>p[0-9.]+|mean|max))?"
    r"\s*(?P<relation><=|>=|<|>)\s*(?P<limit>[0-9.eE+-]+)\s*"
)
_OTHER_NAMES = {"e2el": "e2e"}
Value = int | Fraction


class Requirement(msgspec.Struct, frozen=True):
    """One requirement, as written and as meant. `limit` is in ns of a latency, per second of a rate."""

    text: str
    class_: str | None
    metric: str
    statistic: str | None
    strict: bool
    limit: Fraction

    @property
    def share(self) -> Fraction | None:
        """Which share of the requests must each do their part; None if it is no matter of shares."""
        if self.metric == "attainment":
            return self.limit
        if self.metric == "error_rate":
            return 1 - self.limit
        if self.statistic == "max":
            return Fraction(1)
        return exact(self.statistic[1:]) / 100 if self.statistic and self.statistic != "mean" else None

    def within(self, value: Value) -> bool:
        """Whether a latency is within the limit."""
        return value < self.limit if self.strict else value <= self.limit


class Judged(msgspec.Struct, frozen=True):
    """What became of a requirement. `value` is in ms, per second or a share; None if it is beyond all bounds.

    Of `n` requests `good` did their part, where it is a matter of shares, and of `lost` nobody knows. `met`
    is None where all depends on these.
    """

    requirement: str
    met: bool | None
    value: float | None
    n: int
    good: int | None = None
    lost: int = 0


def parse_requirement(text: str) -> Requirement:
    """InputError, naming the flag, if the text does not follow the grammar."""
    found = _REQUIREMENT.fullmatch(text.strip())
    if not found:
        raise _bad(text, f"expected {GRAMMAR}")
    metric = _OTHER_NAMES.get(found["metric"], found["metric"])
    _check(text, metric, found["statistic"], found["relation"])
    try:
        limit = exact(found["limit"])
        percent = exact(found["statistic"][1:]) if (found["statistic"] or "")[:1] == "p" else None
    except ValueError:
        raise _bad(text, f"expected {GRAMMAR}") from None
    if limit < 0 or (metric in SHARES and limit > 1):
        raise _bad(text, f"{metric} is {'a share from 0 to 1' if metric in SHARES else 'never below 0'}")
    if percent is not None and not 0 < percent < 100:
        raise _bad(text, "a percentile is above p0 and below p100; for all requests say max")
    return Requirement(
        text=" ".join(text.split()),
        class_=found["class"],
        metric=metric,
        statistic=found["statistic"],
        strict=found["relation"] in "<>",
        limit=limit * NS_PER_MS if metric in LATENCIES else limit,
    )


def _check(text: str, metric: str, statistic: str | None, relation: str) -> None:
    """InputError for what no requirement can mean."""
    if metric not in (*LATENCIES, *AT_LEAST, *AT_MOST):
        raise _bad(
            text, f"no metric {shown(metric)}; there are {', '.join((*LATENCIES, *AT_LEAST, *AT_MOST))}"
        )
    if (metric in LATENCIES) != (statistic is not None):
        what = f"{metric} of which requests? say {metric}.p95, .mean or .max"
        raise _bad(text, what if metric in LATENCIES else f"{metric} is one figure, it has no .{statistic}")
    wanted = ">" if metric in AT_LEAST else "<"
    if relation[0] != wanted:
        raise _bad(text, f"{metric} is better {'above' if wanted == '>' else 'below'} a limit: say {wanted}=")


def _bad(text: str, why: str) -> InputError:
    return InputError(f"--require {shown(text)}: {why}")


def needs_slo(requirements: Sequence[Requirement]) -> bool:
    """Whether any of them speaks of the SLO, which `--goodput` says."""
    return any(requirement.metric in ("attainment", "goodput") for requirement in requirements)


def judge(
    requirements: Sequence[Requirement], seen: Observations, t_obs_ns: int, *, lost: int = 0
) -> list[Judged]:
    """Each requirement on the requests of a run, as seen at the end of its window.

    `lost` requests left no row: they count as misses, of any class, where that decides nothing. InputError if
    a requirement needs an SLO and there is none, or names a class that no request has.
    """
    if needs_slo(requirements) and not seen.slo_given:
        raise InputError("--require: attainment and goodput need an SLO, as in --goodput e2e:1500")
    statuses = seen.statuses(t_obs_ns)
    for requirement in requirements:
        if requirement.metric == "queue_delay" and not seen.known("queue_delay", range(len(seen))):
            raise _bad(requirement.text, "a client cannot see the queue delay: say ttft")
    return [_judged(requirement, seen, statuses, t_obs_ns, lost) for requirement in requirements]


def members(requirement: Requirement, seen: Observations) -> Sequence[int]:
    """The indices of the requests of which it speaks. InputError if its class is not there."""
    if requirement.class_ is None:
        return range(len(seen))
    classes = seen.classes()
    if requirement.class_ not in classes:
        known = ", ".join(classes) or "none"
        raise _bad(requirement.text, f"no request of this class; there are: {known}")
    return classes[requirement.class_]


def goods(
    requirement: Requirement, seen: Observations, statuses: Sequence[Outcome], indices: Sequence[int]
) -> list[bool]:
    """Of each request, whether it did its part in a requirement that is a matter of shares."""
    if requirement.metric == "attainment":
        return [bool(seen.met[i]) and statuses[i] == "completed" for i in indices]
    if requirement.metric == "error_rate":
        return [statuses[i] not in FAILURES and statuses[i] != "rejected" for i in indices]
    values = latencies(requirement, seen, statuses, indices)
    return [value is not None and requirement.within(value) for value in values]


def latencies(
    requirement: Requirement, seen: Observations, statuses: Sequence[Outcome], indices: Sequence[int]
) -> list[Value | None]:
    """The latency of each request in ns; None of one that has none, for it did not complete in the window."""
    is_tpot = requirement.metric == "tpot"
    found: Sequence[Value | None] = (
        seen.exact_tpot(indices) if is_tpot else seen.at(requirement.metric, indices)
    )
    return [value if statuses[i] == "completed" else None for i, value in zip(indices, found, strict=True)]


def _judged(
    requirement: Requirement, seen: Observations, statuses: list[Outcome], t_obs_ns: int, lost: int
) -> Judged:
    indices = members(requirement, seen)
    n = len(indices) + lost
    if requirement.metric in ("goodput", "throughput"):
        done = [i for i in indices if statuses[i] == "completed"]
        count = sum(seen.met[i] for i in done) if requirement.metric == "goodput" else len(done)
        rate, most = (Fraction(of * NS_PER_S, max(t_obs_ns, 1)) for of in (count, count + lost))
        met = _known(_reaches(requirement, rate), _reaches(requirement, most))
        return Judged(requirement.text, met, float(rate), n, lost=lost)
    if requirement.statistic == "mean":
        values = latencies(requirement, seen, statuses, indices)
        known = [value for value in values if value is not None]
        possible = n > 0 and len(known) == len(values) and requirement.within(Fraction(sum(known)) / n)
        met = _known(possible and not lost, possible)  # those lost may have taken no time, or any
        return Judged(requirement.text, met, None if lost else _ms(mean_ns(values)), n, lost=lost)
    good = sum(goods(requirement, seen, statuses, indices))
    met = _known(_enough(requirement, good, n), _enough(requirement, good + lost, n))
    if requirement.metric in SHARES:
        share = good / n if n else None
        value = 1 - share if share is not None and requirement.metric == "error_rate" else share
        return Judged(requirement.text, met, value, n, good, lost)
    value = _ms(_percentile(requirement, latencies(requirement, seen, statuses, indices), n))
    return Judged(requirement.text, met, value, n, good, lost)


def _known(at_worst: bool, at_best: bool) -> bool | None:
    """Met or missed, whatever became of the requests of which nobody knows; None if that decides it."""
    return at_worst if at_worst == at_best else None


def mean_ns(values: Sequence[Value | None]) -> Fraction | None:
    """The mean; None if any is a miss, which may yet be of any length."""
    known = [value for value in values if value is not None]
    return Fraction(sum(known)) / len(values) if values and len(known) == len(values) else None


def _reaches(requirement: Requirement, value: Fraction) -> bool:
    return value > requirement.limit if requirement.strict else value >= requirement.limit


def _enough(requirement: Requirement, good: int, n: int) -> bool:
    """Whether so many of n did their part; of nothing nobody can say so."""
    share = requirement.share
    assert share is not None
    strict = requirement.strict and requirement.metric in SHARES
    return n > 0 and (good > share * n if strict else good >= share * n)


def _percentile(requirement: Requirement, values: Sequence[Value | None], n: int) -> Value | None:
    """By nearest rank over all n, those that are misses behind all others."""
    share = requirement.share
    known = sorted(value for value in values if value is not None)
    place = rank(share * 100, n) if share is not None and n else n
    return known[place - 1] if 0 < place <= len(known) else None


def _ms(value_ns: Value | None) -> float | None:
    return None if value_ns is None else float(value_ns / Fraction(NS_PER_MS))
