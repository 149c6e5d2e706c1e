"""What agreement must find, and what it must not: ledgers made by hand, with one thing wrong in each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from ledgers.rows import Outcome, RequestRow, TickRow
from ledgers.settings import Hardware, SchedulerSettings, Slo
from mock_server.policies import make_scheduler
from mock_server.simulate import simulate
from reports.agreement import compare
from reports.sides import Inputs, Side

TICK_NS = 100_000_000
MS = 1_000_000
LENGTHS = {"A": (5, 4), "B": (5, 2), "C": (5, 3), "D": (9, 2)}
ARRIVALS = {"A": 0, "B": 30 * MS, "C": 150 * MS, "D": 420 * MS}
SETTINGS = SchedulerSettings(policy="continuous", max_batch=2, max_wait_ns=2 * TICK_NS, hardware=Hardware())


def simulated(arrivals: dict[str, int], settings: SchedulerSettings = SETTINGS) -> Side:
    """A simulation of the four requests at these arrivals, in this order."""
    rows = [
        RequestRow(id=id, prompt_tokens=LENGTHS[id][0], output_tokens=LENGTHS[id][1], arrival_ns=at)
        for id, at in arrivals.items()
    ]
    ticks: list[TickRow] = []
    ended = simulate(make_scheduler(settings), rows, on_tick=ticks.append)
    return Side({row.id: row for row in ended}, {tick.tick: tick for tick in ticks})


def copied(side: Side) -> Side:
    return msgspec.convert(msgspec.to_builtins(side), Side)


def measured(served: Side, planned: dict[str, int], late_ns: int = MS // 10) -> dict[str, RequestRow]:
    """What a client saw of a served ledger: every token `late_ns` after its write."""
    rows = {}
    for id, row in served.rows.items():
        tokens = [write + late_ns for write in row.token_ns or ()]
        rows[id] = msgspec.structs.replace(
            row,
            arrival_ns=planned[id],
            sent_ns=planned[id] + 1000,
            first_token_ns=tokens[0],
            last_token_ns=tokens[-1],
            token_ns=tokens,
            ticks=None,
        )
    return rows


def inputs(received: dict[str, int] | None = None, slo: Slo = Slo(), tail_ns: int | None = None) -> Inputs:  # noqa: B008
    """A run in which the server received `received`; everything else is as it should be."""
    served = simulated(received or ARRIVALS)
    for row in served.rows.values():
        row.arrival_ns = None
    return Inputs(
        order=list(ARRIVALS),
        planned=simulated(ARRIVALS),
        served=served,
        resimulated=copied(served),
        measured=measured(served, ARRIVALS),
        settings=SETTINGS,
        slo=slo,
        tail_ns=tail_ns,
        client_lag_max_ns=MS,
        client_limits=[],
        stall_limit_ns=250 * MS,
    )


def test_a_faultless_run_agrees() -> None:
    """Everything equal, nothing moved."""
    agreement = compare(inputs())
    assert (agreement.verdict, agreement.reasons) == ("agree", [])
    assert agreement.schedule.requests_equal == 4
    assert agreement.plan.equal == 4
    assert agreement.plan.moved == []
    assert agreement.timing.tokens is not None
    assert agreement.timing.tokens.p95 == pytest.approx(0.1)


def _late_token(run: Inputs) -> None:
    ticks = run.served.rows["C"].ticks
    assert ticks is not None
    ticks.last_token = 99


def _wrong_tick_row(run: Inputs) -> None:
    run.served.ticks[4].kv_cached += 1


def _missing_tick_row(run: Inputs) -> None:
    del run.served.ticks[4]


def _lost_request(run: Inputs) -> None:
    del run.resimulated.rows["B"]


@pytest.mark.parametrize("fault", [_late_token, _wrong_tick_row, _missing_tick_row, _lost_request])
def test_one_different_tick_is_a_disagreement(fault: Callable[[Inputs], None]) -> None:
    """(a) has no tolerance: one request or one tick row is enough."""
    run = inputs()
    fault(run)
    agreement = compare(run)
    assert agreement.verdict == "disagree"
    assert not agreement.schedule.agrees


def test_a_different_schedule_is_a_disagreement_even_on_a_stalled_machine() -> None:
    """Lateness never excuses the schedule."""
    run = inputs()._replace(client_lag_max_ns=10**9)
    _late_token(run)
    assert compare(run).verdict == "disagree"


def test_stamps_that_are_too_late_are_a_disagreement() -> None:
    """5 ms at the 95th percentile is the limit."""
    run = inputs()
    for late_ms, verdict in ((4.9, "agree"), (5.1, "disagree")):
        late = run._replace(measured=measured(run.served, ARRIVALS, round(late_ms * MS)))
        assert compare(late).verdict == verdict


def test_a_token_that_the_client_did_not_see_is_named() -> None:
    """A completed request must have as many stamps as writes."""
    run = inputs()
    stamps = run.measured["A"].token_ns
    assert stamps is not None
    stamps.pop()
    agreement = compare(run)
    assert agreement.timing.missing_tokens == ["A"]
    assert agreement.verdict == "disagree"


@pytest.mark.parametrize("late", ["client", "tick"])
def test_a_stall_is_inconclusive_and_says_who_stalled(late: str) -> None:
    """Beyond the limit the run proves nothing about time."""
    run = inputs()
    if late == "client":
        run = run._replace(client_lag_max_ns=251 * MS)
    else:
        run.served.ticks[3].late_ns = 251 * MS
    agreement = compare(run)
    assert agreement.verdict == "inconclusive"
    assert "251 ms" in agreement.reasons[0]


def test_a_moved_request_excuses_what_follows_but_nothing_before() -> None:
    """C received in tick 4, not 2: A and B, prefilled before, are equal; later differences are listed."""
    agreement = compare(inputs({"A": 0, "B": 30 * MS, "C": 350 * MS, "D": 420 * MS}))
    assert agreement.verdict == "agree"
    assert agreement.plan.moved == ["C"]
    assert agreement.plan.first_moved_tick == 2
    assert "C" in agreement.plan.differ_later
    assert agreement.plan.differ_before == []


def test_a_request_that_waits_for_its_batch_may_be_changed_by_a_later_one_that_moved() -> None:
    """A waits for B: B a tick early forms the batch early. That follows from B and is no disagreement."""
    plan = {"A": 0, "B": 120 * MS, "C": 150 * MS, "D": 420 * MS}
    run_as_planned = inputs(plan)._replace(planned=simulated(plan))
    early = inputs({**plan, "B": 90 * MS})._replace(planned=simulated(plan))
    assert compare(run_as_planned).plan.moved == []
    agreement = compare(early)
    assert agreement.plan.first_moved_tick == 1
    assert "A" in agreement.plan.differ_later
    assert agreement.verdict == "agree"


def test_a_difference_before_anything_moved_is_a_disagreement() -> None:
    """The same fault in the server and in the resimulation is still seen against the plan."""
    run = inputs()
    _late_token(run)
    run = run._replace(resimulated=copied(run.served))
    agreement = compare(run)
    assert agreement.schedule.agrees
    assert agreement.plan.differ_before == ["C"]
    assert agreement.verdict == "disagree"


def test_two_requests_in_another_order_have_moved_though_their_ticks_are_the_same() -> None:
    """Within a tick the queue is in order of arrival, so the order is an input like any other."""
    agreement = compare(inputs({"B": 0, "A": 1 * MS, "C": 150 * MS, "D": 420 * MS}))
    assert {"A", "B"} <= set(agreement.plan.moved)
    assert agreement.verdict == "agree"


def test_a_request_on_the_edge_of_its_slo_may_be_counted_differently_and_is_named() -> None:
    """B misses by the client's clock what it meets by the server's: the bound lies between the two."""
    served = simulated(ARRIVALS).rows["B"]
    assert served.last_token_ns is not None
    e2e_ms = (served.last_token_ns - ARRIVALS["B"]) / MS
    agreement = compare(inputs(slo=Slo(e2e_ms=e2e_ms + 0.05)))
    assert agreement.timing.on_edge == ["B"]
    assert agreement.timing.slo_different == []
    assert agreement.verdict == "agree"


def test_the_parts_of_a_ttft_add_up_to_it() -> None:
    """Send lag to network out: nothing is counted twice and nothing is left over."""
    agreement = compare(inputs())
    for request in agreement.requests:
        parts = request.ttft_parts
        assert parts is not None
        row = inputs().measured[request.id]
        assert row.first_token_ns is not None
        assert row.arrival_ns is not None
        assert sum(msgspec.structs.astuple(parts)) == row.first_token_ns - row.arrival_ns


def test_a_run_in_which_nothing_was_served_proves_nothing() -> None:
    """No request reached the server: inconclusive, not agreement."""
    nothing = Side({}, {})
    run = inputs()._replace(served=nothing, resimulated=nothing, measured={})
    agreement = compare(run)
    assert agreement.verdict == "inconclusive"
    assert "nothing" in agreement.reasons[0]


def test_a_request_without_a_row_of_the_client_is_a_disagreement() -> None:
    """The server served it, the load generator lost it: nothing may be left out of the comparison."""
    run = inputs()
    del run.measured["B"]
    agreement = compare(run)
    assert agreement.timing.outcome_different == ["B"]
    assert agreement.verdict == "disagree"


@pytest.mark.parametrize("outcome", ["stream_error", "timeout", "truncated", "http_error"])
def test_a_failure_that_the_server_knows_nothing_of_is_a_disagreement(outcome: Outcome) -> None:
    """Completed there and failed here: one side is wrong."""
    run = inputs()
    run.measured["C"].outcome = outcome
    agreement = compare(run)
    assert agreement.timing.outcome_different == ["C"]
    assert agreement.verdict == "disagree"


def test_a_rejection_is_paired_with_the_refusal_that_the_client_saw() -> None:
    """400 and 429 are refusals; a 500 or an answer is not."""
    run = inputs()
    run.served.rows["D"].outcome = run.resimulated.rows["D"].outcome = "rejected"
    run.measured["D"].outcome = "http_error"
    run.measured["D"].token_ns = run.served.rows["D"].token_ns = None
    for status, fits in ((400, True), (429, True), (500, False)):
        run.measured["D"].http_status = status
        assert (compare(run).timing.outcome_different == []) is fits


def test_goodput_that_differs_without_an_edge_is_a_disagreement() -> None:
    """The server kept 1000 ms to spare, the client lost an unanswered token: no edge explains that."""
    run = inputs(slo=Slo(e2e_ms=2000))
    run.measured["B"].outcome = "truncated"
    agreement = compare(run)
    assert (agreement.timing.slo_met_measured, agreement.timing.slo_met_served) == (3, 4)
    assert agreement.timing.slo_different == ["B"]
    assert agreement.verdict == "disagree"


def test_requests_of_one_instant_have_the_order_of_the_ledger() -> None:
    """All planned at 0 and received in the ledger's order: none was overtaken, whoever ends first."""
    together = dict.fromkeys(LENGTHS, 0)
    received = {id: place for place, id in enumerate(LENGTHS)}
    run = inputs(received)._replace(planned=simulated(together))
    assert [id for id, row in compare_requests(run).items() if "behind" in " ".join(row)] == []


def compare_requests(run: Inputs) -> dict[str, list[str]]:
    return {request.id: request.moved for request in compare(run).requests}


def test_only_the_one_that_was_overtaken_has_moved() -> None:
    """A comes last of four at the same tick: B, C and D are where they were planned."""
    plan = {"A": 1 * MS, "B": 2 * MS, "C": 3 * MS, "D": 4 * MS}
    first = {"B": 0, "C": 1 * MS, "D": 2 * MS, "A": 3 * MS}
    moved = compare_requests(inputs(first)._replace(planned=simulated(plan)))
    assert [id for id, reasons in moved.items() if "behind" in " ".join(reasons)] == ["A"]


def test_a_cancelled_request_is_an_input_that_moved() -> None:
    """What its leaving changes is no disagreement with the plan."""
    run = inputs()
    ticks = run.served.rows["D"].ticks
    assert ticks is not None
    ticks.cancel = 9
    agreement = compare(run)
    assert agreement.plan.moved == ["D"]
    assert agreement.plan.first_moved_tick == 9


def test_a_client_that_was_the_bottleneck_proves_nothing() -> None:
    """Its own verdict on itself counts."""
    agreement = compare(inputs()._replace(client_limits=["the client used 95% of a core"]))
    assert agreement.verdict == "inconclusive"
    assert agreement.reasons == ["client-limited: the client used 95% of a core"]


def test_a_request_that_never_arrived_leaves_the_question_open() -> None:
    """It may have failed on the client's side: said with the reason, and not taken for agreement."""
    run = inputs()
    for side in (run.served, run.resimulated):
        del side.rows["D"]
    run.measured["D"].outcome = "connect_error"
    run.measured["D"].error = "client limit: too many open files"
    agreement = compare(run)
    assert agreement.verdict == "inconclusive"
    assert agreement.reasons[0] == (
        "1 of 4 requests did not reach the server: client limit: too many open files"
    )


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens"])
def test_a_length_that_is_not_the_planned_one_is_a_disagreement(field: str) -> None:
    """Even if everything has moved: a generator that sends other prompts replays another ledger."""
    run = inputs({"A": 0, "B": 130 * MS, "C": 250 * MS, "D": 620 * MS})
    setattr(run.served.rows["D"], field, 99)
    agreement = compare(run)
    assert agreement.plan.lengths_different == ["D"]
    assert agreement.verdict == "disagree"


def _miscounted(row: RequestRow) -> None:
    row.tokens = (row.tokens or 0) + 3


def _first_token_elsewhere(row: RequestRow) -> None:
    row.first_token_ns = (row.first_token_ns or 0) + 50 * MS


@pytest.mark.parametrize("fault", [_miscounted, _first_token_elsewhere])
def test_what_the_client_reports_must_be_what_it_stamped(fault: Callable[[RequestRow], None]) -> None:
    """Token count and first token are the ones of the stamps that were compared."""
    run = inputs()
    fault(run.measured["B"])
    agreement = compare(run)
    assert agreement.timing.missing_tokens == ["B"]
    assert agreement.verdict == "disagree"
