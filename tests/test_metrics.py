"""The definitions, on rows worked by hand and as identities that hold for any rows."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.concurrency import InFlight, littles_law
from ledgers.distributions import distribution, kaplan_meier, nearest_rank, rests_on_largest
from ledgers.metrics import (
    NEVER,
    Observations,
    answered_early,
    classify,
    completion_ns,
    e2e_ns,
    entered_ns,
    gaps_ns,
    held_ns,
    meets,
    own_lag_ns,
    queue_delay_ns,
    send_lag_ns,
    tpot_ns,
    ttfc_ns,
    ttft_from_send_ns,
    ttft_ns,
    upload_ns,
    window_ns,
)
from ledgers.rows import OUTCOMES, Outcome, RequestRow
from ledgers.settings import Slo

MS = 1_000_000
S = 1_000_000_000


def row(**fields: Any) -> RequestRow:
    """A measured request that arrived at 100 ms, was sent 3 ms late, and got 5 tokens from 200 to 240 ms."""
    known: dict[str, Any] = {
        "id": "R1",
        "prompt_tokens": 8,
        "output_tokens": 5,
        "arrival_ns": 100 * MS,
        "sent_ns": 103 * MS,
        "first_token_ns": 200 * MS,
        "last_token_ns": 240 * MS,
        "end_ns": 241 * MS,
        "tokens": 5,
        "events": 5,
        "streamed": True,
        "outcome": "completed",
    }
    return RequestRow(**known | fields)


# One request


def test_several_tokens_in_one_event_have_no_time_per_token() -> None:
    """Five at once, or one that was seen and an end that was not: TPOT is absent, not 0; an SLO holds."""
    row = RequestRow(
        id="a", prompt_tokens=1, output_tokens=5, arrival_ns=0, first_token_ns=7, last_token_ns=7, end_ns=9,
        tokens=5, events=1, outcome="completed",
    )  # fmt: skip
    assert tpot_ns(row) is None
    assert meets(row, (None, 1, None))
    row.events = 5  # one read, five events: they came together, and that was seen
    assert tpot_ns(row) == 0


def test_a_measured_request() -> None:
    measured = row()
    assert send_lag_ns(measured) == 3 * MS
    assert ttft_ns(measured) == 100 * MS
    assert ttft_from_send_ns(measured) == 97 * MS
    assert tpot_ns(measured) == 10 * MS
    assert e2e_ns(measured) == 140 * MS
    assert queue_delay_ns(measured) is None


def test_a_served_request_counts_from_its_receipt() -> None:
    served = row(arrival_ns=None, sent_ns=None, received_ns=110 * MS, prefill_start_ns=150 * MS)
    assert queue_delay_ns(served) == 40 * MS
    assert ttft_ns(served) == 90 * MS
    assert e2e_ns(served) == 130 * MS
    assert send_lag_ns(served) is None


def test_a_simulated_request_queues_from_its_arrival() -> None:
    assert queue_delay_ns(row(received_ns=100 * MS, prefill_start_ns=150 * MS)) == 50 * MS


def test_one_token_has_no_tpot() -> None:
    assert tpot_ns(row(tokens=1, last_token_ns=200 * MS)) is None


def test_tpot_goes_by_tokens_not_by_events() -> None:
    """Ten tokens in four events between 1000 and 1090 ms: 10 ms per token, not 109."""
    assert tpot_ns(row(first_token_ns=1000 * MS, last_token_ns=1090 * MS, tokens=10, events=4)) == 10 * MS


def test_what_the_run_held_back_is_no_fault_of_the_sender() -> None:
    """Due at 160 ms for want of a place, sent at 163: held for 60 ms, 3 ms late, and TTFT has it all."""
    held = row(due_ns=160 * MS, sent_ns=163 * MS)
    assert (held_ns(held), send_lag_ns(held), ttft_ns(held)) == (60 * MS, 3 * MS, 100 * MS)
    assert held_ns(row()) == 0
    assert held_ns(row(sent_ns=None)) is None


def test_the_own_lag_ends_with_the_first_byte() -> None:
    """Arrived at 100 ms, waited 20 for a connection, sent from 123 to 173: 3 ms are the client's own."""
    slow = row(connect_ns=20 * MS, send_start_ns=123 * MS, sent_ns=173 * MS)
    assert (own_lag_ns(slow), upload_ns(slow), send_lag_ns(slow)) == (3 * MS, 50 * MS, 73 * MS)
    assert (own_lag_ns(row()), upload_ns(row())) == (3 * MS, None)
    assert own_lag_ns(row(sent_ns=None)) is None


@pytest.mark.parametrize(
    ("fields", "early"),
    [
        ({}, False),
        ({"sent_ns": 201 * MS}, True),
        ({"sent_ns": None, "send_start_ns": 103 * MS}, True),
        ({"sent_ns": None}, False),
        ({"sent_ns": 201 * MS, "first_token_ns": None}, False),
    ],
)
def test_an_early_answer_came_before_the_last_byte_left(fields: dict[str, Any], early: bool) -> None:
    assert answered_early(row(**fields)) is early
    if early:
        assert ttft_from_send_ns(row(**fields)) is None


times = st.none() | st.integers(0, 1_000)


@given(st.fixed_dictionaries({name: times for name in RequestRow.__struct_fields__ if name.endswith("_ns")}))
def test_no_duration_is_negative_in_whatever_order_things_came(fields: dict[str, Any]) -> None:
    seen = Observations(Slo())
    seen.add(row(**fields | {"decode_ns": None, "token_ns": None}))
    durations = ("send_lag", "own_lag", "connect", "upload", "held", "queue_delay")
    for name in (*durations, "ttft", "ttfc", "ttft_from_send", "e2e", "decode"):
        assert all(value >= 0 for value in seen.known(name, [0])), name
    assert all(value >= 0 for value in (*seen.tpot([0]), *seen.stays([0])))


def test_a_closed_loop_holds_nothing_back() -> None:
    """There the arrival is the send, a little after the place came free."""
    sent = row(due_ns=100 * MS, arrival_ns=103 * MS, sent_ns=103 * MS)
    assert (held_ns(sent), send_lag_ns(sent), ttft_ns(sent)) == (0, 3 * MS, 97 * MS)


def test_a_retry_counts_from_its_first_arrival_but_is_in_flight_from_its_own_start() -> None:
    again = row(id="R1~1", retry_of="R1", due_ns=180 * MS, sent_ns=181 * MS)
    assert (ttft_ns(again), held_ns(again), entered_ns(again)) == (100 * MS, 80 * MS, 180 * MS)
    assert entered_ns(row(due_ns=180 * MS)) == 100 * MS


def test_reasoning_is_in_ttft_and_not_in_ttfc() -> None:
    """Reasoning from 200 ms on, the answer from 230: tokens count both, once."""
    thought = row(first_content_ns=230 * MS, reasoning_tokens=3)
    assert (ttft_ns(thought), ttfc_ns(thought), tpot_ns(thought)) == (100 * MS, 130 * MS, 10 * MS)
    assert ttfc_ns(row()) is None


TWO_CHOICES: dict[str, Any] = {
    "token_ns": [t * MS for t in (100, 105, 120, 125, 140, 145)],
    "token_choices": [0, 1, 0, 1, 0, 1],
    "choices": 2,
    "first_token_ns": 100 * MS,
    "last_token_ns": 145 * MS,
    "decode_ns": 80 * MS,
    "tokens": 6,
}


def test_gaps_and_tpot_are_those_of_a_choice_never_across() -> None:
    """Two choices side by side, each with a token every 20 ms: no gap is 5 or 15 ms, and TPOT is 20."""
    both = row(**TWO_CHOICES)
    assert gaps_ns(both) == [20 * MS] * 4
    assert tpot_ns(both) == 20 * MS
    assert meets(both, (None, 20 * MS, None))
    assert not meets(both, (None, 20 * MS - 1, None))
    assert tpot_ns(row(**TWO_CHOICES | {"tokens": 2})) is None


def test_a_gap_is_between_two_tokens() -> None:
    """Tokens at 500, 510 and 520 ms have two gaps: the first token's time is none."""
    assert gaps_ns(row(token_ns=[500 * MS, 510 * MS, 520 * MS])) == [10 * MS, 10 * MS]
    assert gaps_ns(row(token_ns=[500 * MS])) == []


def test_an_answer_that_was_not_streamed_has_e2e_only() -> None:
    whole = row(first_token_ns=None, last_token_ns=None, streamed=False)
    assert (ttft_ns(whole), tpot_ns(whole)) == (None, None)
    assert e2e_ns(whole) == 141 * MS


def test_a_failed_request_has_no_completion() -> None:
    assert completion_ns(row(outcome="stream_error")) is None
    assert e2e_ns(row(outcome="stream_error")) is None


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12), st.integers(2, 10**5))
def test_e2e_is_ttft_and_n_minus_1_times_tpot(arrival: int, wait: int, decode: int, tokens: int) -> None:
    first = arrival + wait
    made = row(arrival_ns=arrival, first_token_ns=first, last_token_ns=first + decode, tokens=tokens)
    ttft, tpot = ttft_ns(made), tpot_ns(made)
    assert ttft is not None
    assert tpot is not None
    assert e2e_ns(made) == ttft + (tokens - 1) * tpot


# SLO


@pytest.mark.parametrize(
    ("slo", "fields", "met"),
    [
        (Slo(ttft_ms=100), {}, True),
        (Slo(ttft_ms=99.999999), {}, False),
        (Slo(tpot_ms=10), {}, True),
        (Slo(tpot_ms=10), {"last_token_ns": 240 * MS + 1}, False),
        (Slo(e2e_ms=140), {}, True),
        (Slo(e2e_ms=140), {"last_token_ns": 240 * MS + 1}, False),
        (Slo(ttft_ms=100, tpot_ms=9), {}, False),
        (Slo(tpot_ms=1e-6), {"tokens": 1}, True),
        (Slo(tpot_ms=10), {"tokens": None}, False),
        (Slo(ttft_ms=1e6), {"first_token_ns": None, "streamed": False}, False),
        (Slo(e2e_ms=1e6), {"outcome": "timeout"}, False),
    ],
)
def test_slo_bounds_are_inclusive_and_exact(slo: Slo, fields: dict[str, Any], met: bool) -> None:
    assert meets(row(**fields), slo.bounds_ns()) is met


@given(st.integers(0, 10**15), st.integers(2, 10**6), st.integers(1, 10**10))
def test_the_bound_on_tpot_is_compared_as_a_fraction(decode: int, tokens: int, bound: int) -> None:
    made = row(last_token_ns=200 * MS + decode, tokens=tokens)
    assert meets(made, (None, bound, None)) is (Fraction(decode, tokens - 1) <= bound)


# Percentiles


@pytest.mark.parametrize(("p", "value"), [(0, 10), (50, 20), (99, 30), (100, 30)])
def test_percentiles_of_three_values(p: int, value: int) -> None:
    assert nearest_rank([10, 20, 30], p) == value


def test_ranks_do_not_suffer_from_floats() -> None:
    """0.07 · 100 is 7.000000000000001 in floats, and its ceiling 8."""
    assert nearest_rank(range(1, 101), 7) == 7
    assert nearest_rank(range(1, 1001), 99.9) == 999
    assert nearest_rank(range(1, 1001), "99.9") == 999


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=60), st.integers(1, 1000))
def test_nearest_rank_is_the_smallest_value_that_covers_the_share(values: list[int], per_mille: int) -> None:
    share = Fraction(per_mille, 1000)
    covered = [v for v in values if Fraction(sum(w <= v for w in values), len(values)) >= share]
    assert nearest_rank(sorted(values), Fraction(per_mille, 10)) == min(covered)


@pytest.mark.parametrize("p", [-1, 101, float("nan")])
def test_a_percentile_outside_its_range_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"nan|percentile"):
        nearest_rank([1], p)


def test_percentiles_that_rest_on_the_largest_sample_are_marked() -> None:
    assert [rests_on_largest(99, n) for n in (99, 100)] == [True, False]
    assert [rests_on_largest(99.9, n) for n in (999, 1000)] == [True, False]
    few = distribution([10, 20, 30])
    assert few is not None
    assert few.resting() == ["p90", "p95", "p99"]


def test_figures_of_a_distribution_are_in_ms() -> None:
    found = distribution(value * MS for value in (10, 20, 60))
    assert found is not None
    assert (found.mean, found.p50, found.max, found.n) == (30.0, 20.0, 60.0, 3)
    assert distribution([]) is None


# Kaplan–Meier


def test_kaplan_meier_of_the_textbook_example() -> None:
    """The 6-MP arm of Freireich et al. (1963), remission in weeks: the median is 23, p90 is not reached."""
    relapse = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    still_well = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    found = kaplan_meier([week * MS for week in relapse], [week * MS for week in still_well])
    assert found is not None
    assert (found.p50, found.p90, found.n, found.censored) == (23.0, None, 21, 12)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=150))
def test_kaplan_meier_without_censoring_is_the_nearest_rank(values: list[int]) -> None:
    found, plain = kaplan_meier(values, [], least_at_risk=1), distribution(values)
    assert found is not None
    assert plain is not None
    assert (found.p50, found.p90, found.p95, found.p99) == (plain.p50, plain.p90, plain.p95, plain.p99)


def test_what_is_cut_off_at_the_time_of_an_end_was_at_risk() -> None:
    """Of ten five end at 1 ms and the others are last seen then: half are through."""
    found = kaplan_meier([1 * MS] * 5, [1 * MS] * 5)
    assert found is not None
    assert (found.p50, found.p90) == (1.0, None)


def test_kaplan_meier_does_not_reach_beyond_what_was_seen() -> None:
    found = kaplan_meier([1 * MS], [2 * MS, 2 * MS, 2 * MS])
    assert found is not None
    assert (found.p50, found.p99) == (None, None)
    assert kaplan_meier([], []) is None


def test_an_estimate_that_rests_on_the_last_few_is_none() -> None:
    """Of 100 that all end, four are left behind the 96th: p95 has them beside it, p99 is that of two.

    Six that fail at once leave six: half of those end before the fourth, who is one of three left.
    """
    found = kaplan_meier([ms * MS for ms in range(1, 101)], [])
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99) == (50.0, 90.0, 95.0, None)
    found = kaplan_meier([ms * MS for ms in (20, 30, 40, 50, 60, 70)], [1 * MS] * 6)
    assert found is not None
    assert (found.p50, found.p90, found.n, found.censored) == (None, None, 12, 6)


def test_the_last_end_brings_no_percentile_with_it() -> None:
    """Most are last seen before anything ends: the curve falls from 1 to 0 where one is left."""
    found = kaplan_meier([9 * MS], [1 * MS] * 30)
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99) == (None,) * 4


# Window and classification


def test_the_window_is_the_last_arrival_and_the_tail() -> None:
    assert window_ns(2 * S, 9 * S, 1.4, cut_short=False) == 3_400_000_000
    assert window_ns(2 * S, 9 * S, "drain", cut_short=False) == 9 * S


def test_a_run_that_was_cut_short_is_observed_as_far_as_it_got() -> None:
    assert window_ns(2 * S, 3 * S, 10, cut_short=True) == 3 * S


@pytest.mark.parametrize(
    ("outcome", "left_ns", "seen_as"),
    [
        ("completed", 10, "completed"),
        ("completed", 11, "unfinished"),
        ("completed", None, "unfinished"),
        ("timeout", 10, "timeout"),
        ("timeout", 11, "unfinished"),
        ("connect_error", None, "connect_error"),
        ("cancelled", 10, "cancelled"),
        ("cancelled", 11, "unfinished"),
        ("rejected", 11, "rejected"),
        ("not_sent", None, "not_sent"),
        ("unfinished", 10, "unfinished"),
        (None, None, "unfinished"),
    ],
)
def test_the_window_classifies(outcome: Outcome | None, left_ns: int | None, seen_as: Outcome) -> None:
    assert classify(outcome, left_ns, 10) == seen_as


@given(st.sampled_from([*OUTCOMES, None]), st.none() | st.integers(0, 20), st.integers(0, 20))
def test_every_request_has_one_outcome_of_the_vocabulary(
    outcome: Outcome | None, left_ns: int | None, t_obs_ns: int
) -> None:
    assert classify(outcome, left_ns, t_obs_ns) in OUTCOMES


# Requests in flight


def test_mean_and_peak_of_three_requests() -> None:
    """Two from 0 to 4, one from 4 on: 2·4 + 6 = 14 over 10, and never three at once."""
    flight = InFlight([0, 0, 4], [4, 4, NEVER])
    assert flight.mean(0, 10) == 1.4
    assert flight.peak() == 2
    assert flight.at(4) == 1
    assert flight.mean(5, 5) is None


def test_an_arrival_at_the_end_of_the_window_meets_those_still_in_flight() -> None:
    assert InFlight([0, 10], [NEVER, NEVER]).peak() == 2


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=20)


@given(intervals)
def test_concurrency_equals_counting_instant_by_instant(spans: list[list[int]]) -> None:
    flight = InFlight([a for a, _ in spans], [b for _, b in spans])
    levels = [sum(a <= t < b for a, b in spans) for t in range(30)]
    assert flight.mean(0, 30) == sum(levels) / 30
    assert flight.peak() == max(levels)


def test_littles_law_holds_exactly_when_all_completed() -> None:
    """Each second a request arrives and stays 2 s: L·12 = 10 · 2 and nothing at the edges."""
    starts = [i * S for i in range(10)]
    law = littles_law(InFlight(starts, [s + 2 * S for s in starts]), 12 * S, 9 * S, [2 * S] * 10, {})
    assert law is not None
    assert law.concurrency_mean == law.product == pytest.approx(20 / 12)
    assert law.applies
    assert law.reasons[1].startswith("no edge effects")


def test_littles_law_does_not_apply_while_the_backlog_grows() -> None:
    """Ten arrive, one a second, and a server needs 3 s for each."""
    starts = [i * S for i in range(10)]
    ends = [(i + 1) * 3 * S for i in range(10)]
    done = [e - s for s, e in zip(starts, ends, strict=True) if e <= 10 * S]
    law = littles_law(InFlight(starts, ends), 10 * S, 9 * S, done, {"unfinished": 7})
    assert law is not None
    assert not law.applies
    assert law.in_flight_at_end == 7
    assert "7 unfinished" in law.reasons[1]


def test_littles_law_does_not_apply_if_failures_took_the_time() -> None:
    """A steady load, half of which fails: L counts their time, X·W does not."""
    starts = [i * S for i in range(10)]
    law = littles_law(InFlight(starts, [s + S for s in starts]), 10 * S, 9 * S, [S] * 5, {"timeout": 5})
    assert law is not None
    assert (law.concurrency_mean, law.product, law.applies) == (1.0, 0.5, False)
    assert law.reasons[1] == "edge effects: 5 timeout; 50% of the time in flight was theirs"


def test_of_a_burst_that_drained_the_law_is_an_identity() -> None:
    """All at one instant: there are no halves of the arrivals to compare, and that is said."""
    law = littles_law(InFlight([0] * 3, [S, 2 * S, 3 * S]), 3 * S, 0, [S, 2 * S, 3 * S], {})
    assert law is not None
    assert law.applies
    assert law.concurrency_mean == law.product == 2.0
    assert law.reasons[0] == "all arrived at one instant"


def test_equal_sides_of_the_law_are_not_called_a_stable_queue() -> None:
    """Four arrive in each second of the middle third, and one is served: drained, the sides are equal."""
    starts = [i * S for i in range(30)] + [30 * S + i * S // 4 for i in range(120)]
    starts += [i * S for i in range(60, 90)]
    ends: list[int] = []
    for start in starts:
        ends.append(max([start, *ends[-1:]]) + S)
    stays = [end - start for start, end in zip(starts, ends, strict=True)]
    law = littles_law(InFlight(starts, ends), ends[-1], starts[-1], stays, {})
    assert law is not None
    assert law.concurrency_mean == pytest.approx(law.product)
    assert law.applies
    assert "stable" not in " ".join(law.reasons)


def test_littles_law_needs_a_window() -> None:
    assert littles_law(InFlight([], []), 0, 0, [], {}) is None


# Columns


stays = st.tuples(st.sampled_from(OUTCOMES), st.integers(0, 50), st.none() | st.integers(0, 50))


@given(st.lists(stays, max_size=30))
def test_survival_covers_every_request_that_was_in_flight(
    made: list[tuple[Outcome, int, int | None]],
) -> None:
    seen = Observations(Slo())
    for outcome, arrival, stay in made:
        end = None if stay is None else arrival + stay
        seen.add(
            row(arrival_ns=arrival, end_ns=end, last_token_ns=None, first_token_ns=None, outcome=outcome)
        )
    statuses = seen.statuses(60)
    survival = seen.survival("e2e", statuses, 60)
    here = [s for s in statuses if s not in ("rejected", "not_sent")]
    assert (survival.n if survival else 0) == len(here)
    assert (survival.censored if survival else 0) == sum(s != "completed" for s in here)


def test_a_request_in_flight_lengthens_the_honest_estimate() -> None:
    """A third each done in 10 and 20 ms, and in flight for 90: the median of those done is 10, of all 20."""
    seen = Observations(Slo())
    for arrival, end in ((0, 10), (0, 20), (10, 500)) * 10:
        seen.add(row(arrival_ns=arrival * MS, last_token_ns=end * MS, first_token_ns=None))
    survival = seen.survival("e2e", seen.statuses(100 * MS), 100 * MS)
    assert survival is not None
    assert (survival.p50, survival.p90, survival.censored) == (20.0, None, 10)


def test_a_failure_says_nothing_about_the_time_after_it() -> None:
    """A third failed at once, others took 10 and 20 ms: the median of those that stayed is 10, not 20."""
    seen = Observations(Slo())
    made: list[tuple[int, Outcome]] = [(1, "http_error"), (10, "completed"), (20, "completed")]
    for end, outcome in made * 50:
        seen.add(row(arrival_ns=0, last_token_ns=None, first_token_ns=None, end_ns=end * MS, outcome=outcome))
    survival = seen.survival("e2e", seen.statuses(S), S)
    assert survival is not None
    assert (survival.p50, survival.p90, survival.censored) == (10.0, 20.0, 50)


def test_what_was_never_sent_does_not_extend_the_window_of_an_interrupted_run() -> None:
    seen = Observations(Slo())
    seen.add(row())
    seen.add(
        row(arrival_ns=3600 * S, outcome="not_sent", end_ns=None, first_token_ns=None, last_token_ns=None)
    )
    assert seen.window_ns("drain", cut_short=True) == 241 * MS
    assert seen.window_ns("drain", cut_short=False) == 3600 * S
    assert ceil(seen.window_ns(1.4, cut_short=False) / S) == 3602


def test_columns_say_what_the_definitions_say() -> None:
    """One formula: the figures over many requests are those of each of them."""
    rows = [row(), row(**TWO_CHOICES), row(tokens=1), row(streamed=False, first_token_ns=None)]
    seen = Observations(Slo())
    for made in rows:
        seen.add(made)
    assert seen.tpot(range(4)) == [float(tpot) for made in rows if (tpot := tpot_ns(made)) is not None]
    assert seen.known("send_lag", range(4)) == [send_lag_ns(made) for made in rows]


def test_a_request_that_was_tried_again_is_in_flight_once_at_a_time() -> None:
    """Failed at 10 ms, tried again from 30 to 50: never two at once, though both arrived at 0."""
    seen = Observations(Slo())
    seen.add(row(arrival_ns=0, outcome="http_error", end_ns=10 * MS, last_token_ns=None))
    seen.add(row(arrival_ns=0, due_ns=30 * MS, retry_of="R1", last_token_ns=50 * MS))
    assert seen.in_flight(seen.statuses(S)).peak() == 1
    assert seen.in_flight(seen.statuses(S)).mean(0, 50 * MS) == (10 + 20) / 50
    assert list(seen.stays(seen.statuses(S))) == [20 * MS]
