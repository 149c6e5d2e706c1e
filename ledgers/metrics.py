"""What is measured, and how it is defined: one set of definitions for simulated, served and measured rows.

Pure. A request's own figures are functions of its row; what is said about many is computed from columns of
integers (`Observations`), so that a long run needs at most 8 bytes per request and metric. Owns no file and
no layout: `ledgers.summary` puts these figures together.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from ledgers.columns import Table
from ledgers.concurrency import InFlight
from ledgers.distributions import Survival, kaplan_meier
from ledgers.rows import FAILURES, OUTCOMES, Outcome, RequestRow
from ledgers.settings import Slo
from ledgers.units import to_ns

Bounds = tuple[int | None, int | None, int | None]
Tail = float | Literal["drain"]
NEVER = 2**63 - 1  # the end of a request that is not known to have ended
NEVER_IN_FLIGHT: frozenset[Outcome] = frozenset({"rejected", "not_sent"})


# One request


def origin_ns(row: RequestRow) -> int | None:
    """Where TTFT and E2E count from: the intended arrival, or where a server cannot know it, the receipt."""
    return row.received_ns if row.arrival_ns is None else row.arrival_ns


def completion_ns(row: RequestRow) -> int | None:
    """The last token c of a completed request; its end where the answer was not streamed."""
    if row.outcome != "completed":
        return None
    return row.end_ns if row.last_token_ns is None else row.last_token_ns


def entered_ns(row: RequestRow) -> int | None:
    """From when a request was in flight: its arrival; a retry enters anew, or it would be there twice."""
    return origin_ns(row) if row.retry_of is None or row.due_ns is None else row.due_ns


def leave_ns(row: RequestRow) -> int | None:
    """When the request was over, however it ended; None if that is not known."""
    return row.end_ns if (c := completion_ns(row)) is None else c


def wanted_ns(row: RequestRow) -> int | None:
    """When a request was to leave: at its intended arrival, or when the run let it go."""
    return row.arrival_ns if row.due_ns is None else row.due_ns


def send_lag_ns(row: RequestRow) -> int | None:
    """Sent − when it was to leave, never hidden in another figure."""
    return _elapsed(row.sent_ns, wanted_ns(row))


def own_lag_ns(row: RequestRow) -> int | None:
    """What of the send lag is the generator's alone: until the first byte left.

    Without the waits for a server that is slow to accept the connection, or to take the body.
    """
    lag = _difference(row.sent_ns if row.send_start_ns is None else row.send_start_ns, wanted_ns(row))
    return None if lag is None else max(0, lag - (row.connect_ns or 0))


def upload_ns(row: RequestRow) -> int | None:
    """From the first to the last byte of the request: how long the server or the link took to take it."""
    return _elapsed(row.sent_ns, row.send_start_ns)


def answered_early(row: RequestRow) -> bool:
    """Whether the first token came before the request was wholly sent."""
    if row.first_token_ns is None:
        return False
    if row.sent_ns is None:
        return row.send_start_ns is not None
    return row.first_token_ns < row.sent_ns


def held_ns(row: RequestRow) -> int | None:
    """How long the run held a request back, for a place under a cap or before a retry; 0 if it did not.

    A part of TTFT and E2E, and never of the send lag.
    """
    if row.sent_ns is None or row.arrival_ns is None:
        return None
    return 0 if row.due_ns is None else max(0, row.due_ns - row.arrival_ns)


def queue_delay_ns(row: RequestRow) -> int | None:
    """Prefill start − arrival (simulated) or receipt (served); a client cannot see it."""
    return _elapsed(row.prefill_start_ns, origin_ns(row))


def ttft_ns(row: RequestRow) -> int | None:
    """First token − intended arrival, so that a late generator cannot flatter the server."""
    return _elapsed(row.first_token_ns, origin_ns(row))


def ttfc_ns(row: RequestRow) -> int | None:
    """First output that is no reasoning − intended arrival: when a reader saw the answer begin."""
    return _elapsed(row.first_content_ns, origin_ns(row))


def ttft_from_send_ns(row: RequestRow) -> int | None:
    """First token − sent: what tools that do not correct for coordinated omission call TTFT.

    None where the server answered before it had the whole request.
    """
    return _elapsed(row.first_token_ns, row.sent_ns)


def e2e_ns(row: RequestRow) -> int | None:
    """Last token − intended arrival, of a completed request; with one choice, TTFT + (n − 1)·TPOT."""
    return _elapsed(completion_ns(row), origin_ns(row))


def e2e_from_send_ns(row: RequestRow) -> int | None:
    """Last token − sent, of a completed request: E2E as tools have it that do not correct."""
    return _elapsed(completion_ns(row), row.sent_ns)


def decode_ns(row: RequestRow) -> int | None:
    """First to last token, summed over the choices; None where the answer was not streamed."""
    return _elapsed(row.last_token_ns, row.first_token_ns) if row.decode_ns is None else row.decode_ns


def later_tokens(row: RequestRow) -> int | None:
    """How many tokens came after another one of the same choice: n − 1, where there is one choice.

    Of several tokens that came in one event nobody can say that one came after the other.
    """
    return 0 if row.events == 1 and row.tokens else _difference(row.tokens, row.choices or 1)


def tpot_ns(row: RequestRow) -> Fraction | None:
    """(c − f)/(n − 1), exactly, per choice. None for n ≤ 1 and for one event: there is no further token."""
    decode, later = decode_ns(row), later_tokens(row)
    if decode is None or later is None or later < 1:
        return None
    return Fraction(decode, later)


def meets(row: RequestRow, bounds: Bounds) -> bool:
    """Whether a completed request meets every bound (ns, on TTFT, TPOT and E2E), compared in integers.

    TPOT counts as 0 for n ≤ 1. What is not known is not met: an answer that was not streamed has no TTFT.
    """
    ttft, tpot, e2e = bounds
    if row.outcome != "completed":
        return False
    if tpot is not None and not _meets_tpot(row, tpot):
        return False
    return _within(ttft_ns(row), ttft) and _within(e2e_ns(row), e2e)


def _meets_tpot(row: RequestRow, bound: int) -> bool:
    later = later_tokens(row)
    if later is None or later < 1:
        return later is not None
    return _within(decode_ns(row), bound * later)


def _within(value: int | None, bound: int | None) -> bool:
    return bound is None or (value is not None and value <= bound)


def _difference(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier


def _elapsed(later: int | None, earlier: int | None) -> int | None:
    """A duration; None where one is not known, or the order is the other one: that is no duration."""
    elapsed = _difference(later, earlier)
    return None if elapsed is None or elapsed < 0 else elapsed


# Many requests


def window_ns(last_arrival_ns: int, last_end_ns: int, tail_s: Tail, cut_short: bool) -> int:
    """T_obs: the last intended arrival + tail, or through the last end with `drain`.

    A run that was cut short (killed or interrupted) is observed no further than the last thing it recorded.
    """
    last_seen = max(last_arrival_ns, last_end_ns)
    if tail_s == "drain":
        return last_seen
    planned = last_arrival_ns + to_ns(tail_s)
    return min(planned, last_seen) if cut_short else planned


def classify(outcome: Outcome | None, left_ns: int | None, t_obs_ns: int) -> Outcome:
    """The outcome as seen at T_obs: what ended later, or has not ended, is unfinished.

    A rejected request was never in flight, and one that was not sent cannot end; they stay what they are. So
    does a failure whose end is not known. Completed is only what is known to have completed in the window.
    """
    if outcome in NEVER_IN_FLIGHT:
        return outcome
    if left_ns is None:
        return outcome if outcome in FAILURES or outcome == "cancelled" else "unfinished"
    return outcome if outcome is not None and left_ns <= t_obs_ns else "unfinished"


def window_end_ns(last_arrival_ns: int, tail_s: Tail) -> int:
    """T_obs as far as it is known before the run; with `drain` there is no end to exceed."""
    return NEVER if tail_s == "drain" else last_arrival_ns + to_ns(tail_s)


def completed_by(row: RequestRow, t_obs_ns: int) -> bool:
    return classify(row.outcome, leave_ns(row), t_obs_ns) == "completed"


def distributed_ns(row: RequestRow) -> dict[str, list[int]]:
    """What a completed request adds to the distributions that are kept as histograms, by tag."""
    values = {"ttft": ttft_ns(row), "e2e": e2e_ns(row)}
    known = {tag: [value] for tag, value in values.items() if value is not None}
    return {**known, "itl": gaps_ns(row)}


def gaps_ns(row: RequestRow) -> list[int]:
    """ITL: every gap between consecutive token events of one choice, where they were recorded."""
    times = row.token_ns or ()
    if row.token_choices is None:
        return [after - before for before, after in pairwise(times)]
    gaps: list[int] = []
    last: dict[int, int] = {}
    for choice, ns in zip(row.token_choices, times, strict=True):
        if choice in last:
            gaps.append(ns - last[choice])
        last[choice] = ns
    return gaps


COLUMNS: dict[str, Callable[[RequestRow], int | None]] = {
    "origin": origin_ns,
    "due": lambda row: row.due_ns,
    "leave": leave_ns,
    "sent": lambda row: row.sent_ns,
    "send_lag": send_lag_ns,
    "own_lag": own_lag_ns,
    "connect": lambda row: row.connect_ns,
    "upload": upload_ns,
    "held": held_ns,
    "queue_delay": queue_delay_ns,
    "ttft": ttft_ns,
    "ttfc": ttfc_ns,
    "ttft_from_send": ttft_from_send_ns,
    "e2e": e2e_ns,
    "decode": decode_ns,
    "later": later_tokens,
    "tokens": lambda row: row.tokens,
    "prompt": lambda row: row.prompt_tokens,
    "usage_prompt": lambda row: row.usage_prompt_tokens,
}


_DEFINITIONS = tuple(COLUMNS.values())
_CODED = (*OUTCOMES, None)
_CODES = {outcome: code for code, outcome in enumerate(_CODED)}


class Observations:
    """What the rows of a run say, as columns of integers; the rows themselves are not kept."""

    def __init__(self, slo: Slo) -> None:
        self._bounds = slo.bounds_ns()
        self.slo_given = slo.given
        self._columns = Table(COLUMNS)
        self._outcomes = array("b")
        self._retries = array("b")
        self._followed_retries = array("b")  # whether another one followed
        self._failed = Table(("row", "id"))  # first attempts, after which there could be another
        self._last_retry: dict[str, int] = {}  # by request
        self._class_of = array("i")
        self.met = array("b")
        self._codes: dict[str, int] = {}
        self.last_arrival_ns = 0
        self.last_offered_ns = 0
        self.last_end_ns = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    def add(self, row: RequestRow) -> None:
        self._columns.append([define(row) for define in _DEFINITIONS])
        self._outcomes.append(_CODES[row.outcome])
        code = -1 if row.class_ is None else self._codes.setdefault(row.class_, len(self._codes))
        self._class_of.append(code)
        self.met.append(self.slo_given and meets(row, self._bounds))
        self._retries.append(row.retry_of is not None)
        self._followed_retries.append(False)
        self._follow_attempts(row)
        self._extend_window(row)

    def _follow_attempts(self, row: RequestRow) -> None:
        """A request's attempts come one after another; one that never left supersedes none."""
        this, request = len(self) - 1, row.retry_of
        if request is None:
            if row.outcome in FAILURES:
                self._failed.append((this, row.id))
        elif row.outcome not in NEVER_IN_FLIGHT:
            if request in self._last_retry:
                self._followed_retries[self._last_retry[request]] = True
            self._last_retry[request] = this

    def _extend_window(self, row: RequestRow) -> None:
        arrival = origin_ns(row) or 0
        if arrival > self.last_arrival_ns:
            self.last_arrival_ns = arrival
        if arrival > self.last_offered_ns and row.outcome != "not_sent":
            self.last_offered_ns = arrival
        if row.outcome not in NEVER_IN_FLIGHT:
            self.last_end_ns = max(self.last_end_ns, row.end_ns or 0, row.last_token_ns or 0)

    def window_ns(self, tail_s: Tail, cut_short: bool) -> int:
        """T_obs; what a run that was cut short never sent does not count as offered."""
        last = self.last_offered_ns if cut_short else self.last_arrival_ns
        return window_ns(last, self.last_end_ns, tail_s, cut_short)

    def statuses(self, t_obs_ns: int) -> list[Outcome]:
        """The outcome of each request as seen at T_obs."""
        seen = zip(map(_CODED.__getitem__, self._outcomes), self._columns["leave"], strict=True)
        return [classify(outcome, left_ns, t_obs_ns) for outcome, left_ns in seen]

    def classes(self) -> dict[str, array[int]]:
        """The indices of the requests of each class, by its name; requests without a class are in none."""
        members = {code: array("i") for code in self._codes.values()}
        for i, code in enumerate(self._class_of):
            if code >= 0:
                members[code].append(i)
        return {name: members[code] for name, code in sorted(self._codes.items())}

    def first_attempts(self) -> Sequence[int]:
        """The indices of the requests that are no retries."""
        if 1 not in self._retries:
            return range(len(self))
        return array("i", (i for i, again in enumerate(self._retries) if not again))

    def by_arrival(self, indices: Sequence[int]) -> Sequence[int]:
        """`indices` in order of arrival, ties in order of the rows; those of unknown arrival first."""
        return array("i", sorted(indices, key=self._columns["origin"].cells.__getitem__))

    def known(self, name: str, indices: Iterable[int]) -> list[int]:
        """The values of a column at `indices`, without those that are not known."""
        return self._columns[name].known(indices)

    def at(self, name: str, indices: Iterable[int]) -> list[int | None]:
        """The values of a column at `indices`, one for each of them."""
        column = self._columns[name]
        return [column[i] for i in indices]

    def exact_tpot(self, indices: Iterable[int]) -> list[Fraction | int | None]:
        """TPOT in ns at `indices`; 0 where no token followed another, as an SLO counts it."""
        decodes, laters = self._columns["decode"], self._columns["later"]
        found: list[Fraction | int | None] = []
        for i in indices:
            decode, later = decodes[i], laters[i]
            if later is None or (later >= 1 and decode is None):
                found.append(None)
            else:
                found.append(Fraction(decode, later) if later >= 1 else 0)
        return found

    def pairs(self, one: str, other: str, indices: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The values of two columns at `indices`, of the requests of which both are known."""
        first, second = self._columns[one], self._columns[other]
        for i in indices:
            if (a := first[i]) is not None and (b := second[i]) is not None:
                yield a, b

    def tpot(self, indices: Iterable[int]) -> list[float]:
        """TPOT in ns of each streamed request in which a token followed another."""
        return [decode / later for decode, later in self.pairs("decode", "later", indices) if later >= 1]

    def sends(self) -> Iterator[tuple[int, int]]:
        """When each request was to leave (`wanted_ns`), and its own lag, where both are known."""
        columns = (self._columns[name] for name in ("origin", "due", "own_lag"))
        for origin, due, lag in zip(*columns, strict=True):
            if lag is not None:
                yield (origin if due is None else due), lag

    def stays(self, statuses: list[Outcome]) -> Sequence[int]:
        """How long each that completed was in flight: its E2E, but for a retry."""
        done = (span for status, *span in self._flights(statuses) if status == "completed")
        return array("q", (left - entered for entered, left in done))

    def in_flight(self, statuses: list[Outcome]) -> InFlight:
        # Each is sorted as it comes: unsorted and sorted at a time, they would take twice as much.
        starts = (entered for _, entered, _ in self._flights(statuses))
        return InFlight(starts, (left for _, _, left in self._flights(statuses)))

    def _flights(self, statuses: list[Outcome]) -> Iterator[tuple[Outcome, int, int]]:
        """What was in flight: how it ended, and from when to when (`entered_ns`, `leave_ns`)."""
        columns = (self._columns[name] for name in ("origin", "due", "leave"))
        for status, again, origin, due, left in zip(statuses, self._retries, *columns, strict=True):
            entered = due if again and due is not None else origin
            if status not in NEVER_IN_FLIGHT and entered is not None:
                yield status, entered, NEVER if left is None else max(entered, left)

    def _followed(self) -> array[int]:
        """Of each attempt, whether it was followed by another."""
        followed = self._followed_retries[:]
        if self._last_retry:
            for first, id in zip(self._failed["row"], self._failed["id"], strict=True):
                followed[first] = id in self._last_retry
        return followed

    def survival(self, name: str, statuses: list[Outcome], t_obs_ns: int) -> Survival | None:
        """Kaplan–Meier of `e2e` or `ttft`, over every request that was in flight.

        One still in flight at T_obs is censored there, one that failed or was cancelled when it left. An
        attempt that was followed by another is no end for its client: the last one counts.
        """
        columns = (self._columns[column] for column in ("origin", "leave", name))
        observed, censored = array("q"), array("q")
        for status, again, origin, left, value in zip(statuses, self._followed(), *columns, strict=True):
            if status in NEVER_IN_FLIGHT or again or origin is None:
                continue
            if value is not None and origin + value <= t_obs_ns:
                observed.append(value)
            elif status != "completed":  # a completed answer that was not streamed says nothing about TTFT
                seen_until = t_obs_ns if left is None else min(left, t_obs_ns)
                censored.append(max(0, seen_until - origin))
        return kaplan_meier(observed, censored)
