"""Faults by name: what a word means, who is hit, and what stands in the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgers.errors import InputError
from ledgers.rows import Outcome, RequestRow, Ticks
from ledgers.settings import Hardware, SchedulerSettings
from mock_server.engine import Job
from mock_server.fault_choice import FaultChoice, FaultSettings, Planned, fault_settings, load_plan
from mock_server.faults import parse_fault, settle
from mock_server.metrics import finish_reason
from reports.agreement import compare
from tests.test_agreement import inputs
from tests.test_engine import TICK_NS, Client, World


@pytest.mark.parametrize(
    ("word", "spelt"),
    [
        ("http-500", "http-500"),
        ("http-429", "http-429:retry_after=1"),
        ("cut:after=5", "cut:after=5"),
        ("cut", "cut:after=1"),
        ("stall:after=3,seconds=1.5", "stall:after=3,seconds=1.5"),
        ("stall:seconds=2", "stall:after=1,seconds=2"),
        ("slow-first-byte:seconds=0.25", "slow-first-byte:seconds=0.25"),
        ("wrong-usage:by=-3", "wrong-usage:by=-3"),
        ("script:my_script.v2", "script:my_script.v2"),
    ],
)
def test_a_word_is_read_and_spelt_with_all_its_parameters(word: str, spelt: str) -> None:
    """What stands in a ledger needs no defaults to be understood, and is read as the same fault again."""
    assert parse_fault(word).word == spelt
    assert parse_fault(spelt) == parse_fault(word)


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("", "unknown fault"),
        ("http-418", "http-418"),
        ("cut:seconds=1", "seconds"),
        ("http-500:after=1", "of http-500: none"),
        ("cut:after=-1", "after"),
        ("cut:after=1.5", "after"),
        ("cut:after=", "after"),
        ("cut:after=1,after=2", "twice"),
        ("stall:seconds=nan", "seconds"),
        ("stall:seconds=99999", "3600"),
        ("script:", "script:NAME"),
        ("script:../etc/passwd", "script:NAME"),
    ],
)
def test_a_wrong_word_is_refused_by_name(word: str, named: str) -> None:
    """The message says what of it is wrong."""
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        parse_fault(word)


def chosen(choice: FaultChoice, ids: list[str]) -> dict[str, str]:
    faults = {id: choice.choose(id, number) for number, id in enumerate(ids, 1)}
    return {id: fault.word for id, fault in faults.items() if fault}


def test_draws_do_not_depend_on_order_and_come_out_at_their_probability() -> None:
    """Of 20,000 requests 10 % and 5 % are hit, the same ones in any order; another seed hits others."""
    ids = [f"run-7-R{number}" for number in range(20_000)]
    settings = FaultSettings(faults=["cut:after=2@0.1", "http-503@0.05"], seed=1)
    hit = chosen(FaultChoice(settings), ids)
    assert chosen(FaultChoice(settings), ids[::-1]) == hit
    counts = [list(hit.values()).count(word) for word in ("cut:after=2", "http-503:retry_after=1")]
    assert counts == [pytest.approx(2000, abs=200), pytest.approx(1000, abs=150)]
    other = chosen(FaultChoice(FaultSettings(faults=settings.faults, seed=2)), ids)
    assert 0.5 * len(hit) < len(hit.keys() - other.keys())


def test_draws_are_the_same_on_every_machine() -> None:
    """By SHA-256 of seed and id: with seed 0, two of these six are in the lower half."""
    choice = FaultChoice(FaultSettings(faults=["cut@0.5"], seed=0))
    assert [id for id in "abcdef" if choice.choose(id, 1)] == ["d", "f"]


def test_a_request_of_the_load_generator_is_hit_in_every_run() -> None:
    """What `tokentick run` puts before its ids is another in each run, and makes no difference."""
    choice = FaultChoice(FaultSettings(faults=["cut@0.5"], plan=[Planned(request_id="R9", fault="stall")]))
    for id in (f"R{number}" for number in range(50)):
        assert choice.choose(f"tt-0123abcd-{id}", 1) == choice.choose(f"tt-89ef4567-{id}", 2)
    assert chosen(choice, ["tt-0123abcd-R9"]) == {"tt-0123abcd-R9": "stall:after=1,seconds=1"}


def test_requests_without_an_id_are_drawn_by_their_number() -> None:
    """About half of them are hit, and the same ones again."""
    choice = FaultChoice(FaultSettings(faults=["cut@0.5"]))
    hit = [number for number in range(1, 1001) if choice.choose(None, number)]
    assert 400 < len(hit) < 600
    assert hit == [number for number in range(1, 1001) if choice.choose(None, number)]


def test_a_header_wins_over_the_plan_and_the_plan_over_the_draw() -> None:
    """`none` spares a request."""
    plan = [Planned(request_id="a", fault="stall"), Planned(number=7, fault="none")]
    choice = FaultChoice(FaultSettings(faults=["http-500@1"], plan=plan))
    words = [
        fault.word if (fault := choice.choose(*request)) else None
        for request in (("b", 1), ("a", 1), ("a", 1, "cut"), ("a", 1, "none"), ("b", 7), (None, 7), (None, 8))
    ]
    assert words == ["http-500", "stall:after=1,seconds=1", "cut:after=1", None, None, None, "http-500"]


def test_none_spares_a_share_of_the_requests() -> None:
    """A quarter of them has the fault that is drawn beside it; alone it is no fault at all."""
    choice = FaultChoice(FaultSettings(faults=["none@0.75", "cut@0.25"]))
    hit = chosen(choice, [f"R{number}" for number in range(2000)])
    assert set(hit.values()) == {"cut:after=1"}
    assert len(hit) == pytest.approx(500, abs=100)
    assert choice.settings.faults == ["none@0.75", "cut:after=1@0.25"]
    assert FaultChoice(FaultSettings(faults=["none"])).choose("a", 1) is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (FaultSettings(faults=["cut@1.5"]), "probability"),
        (FaultSettings(faults=["cut@nan"]), "probability"),
        (FaultSettings(faults=["cut@"]), "probability"),
        (FaultSettings(faults=["cut@0.6", "stall@0.6"]), "more than 1"),
        (FaultSettings(faults=["none@0.6", "stall@0.6"]), "more than 1"),
        (FaultSettings(faults=["script:x@0.1"]), "unknown script"),
        (FaultSettings(plan=[Planned(fault="cut")]), "request_id or a number"),
        (FaultSettings(plan=[Planned(fault="cut", number=1, request_id="a")]), "request_id or a number"),
        (FaultSettings(plan=[Planned(fault="cut", number=1), Planned(fault="stall", number=1)]), "twice"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: FaultSettings, named: str) -> None:
    """One message says what is wrong."""
    with pytest.raises(ValueError, match=named):
        FaultChoice(settings)


def test_a_plan_is_read_from_jsonl_and_from_csv(tmp_path: Path) -> None:
    """Both say the same."""
    jsonl, table = tmp_path / "plan.jsonl", tmp_path / "plan.csv"
    jsonl.write_text(
        '{"request_id": "a", "fault": "stall:after=3,seconds=1.5"}\n\n{"number": 2, "fault": "cut"}\n'
    )
    table.write_text('request_id,number,fault\na,,"stall:after=3,seconds=1.5"\n,2,cut\n')
    expected = [Planned(request_id="a", fault="stall:after=3,seconds=1.5"), Planned(number=2, fault="cut")]
    assert load_plan(jsonl) == load_plan(table) == expected


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"number": 0, "fault": "cut"}\n', "line 1"),
        ('{"number": 1, "fault": "cut"}\n{"number": 2, "what": 1}\n', "line 2"),
        ('{"number": 1, "fault": "cut"}\n{\n', "line 2"),
        ("number,fault\n1,cut\nx,cut\n", "line 3"),
        ("number,fault\n1,cut,again\n", "line 2"),
        (f"number,fault\n{'9' * 5000},cut\n", "line 2"),
        ("[" * 100_000 + "\n", "the columns are"),
        ('{"request_id":' + "[" * 100_000 + "\n", "line 1"),
        ('{"number": 1, "fault": "cut"}\n' * 150_000, "larger than 4 MiB"),
        ('{"number": 1, "fault": "bang"}\n', "bang"),
    ],
)
def test_a_plan_that_cannot_be_read_says_where(tmp_path: Path, text: str, where: str) -> None:
    """The file, and the line or the word."""
    plan = tmp_path / "plan"
    plan.write_text(text)
    with pytest.raises(InputError, match=where) as raised:
        fault_settings([], 0, plan, ())
    assert f"--fault-plan {plan}" in str(raised.value)


def test_a_word_that_is_cut_short_keeps_its_quotes() -> None:
    """A message stays readable, however long the word in it."""
    with pytest.raises(ValueError, match=r"unknown fault 'x{39}…' "):
        parse_fault("x" * 100)


@pytest.mark.parametrize(
    ("fault", "streamed", "scheduled", "seen"),
    [
        ("cut:after=3", True, "cancelled", "truncated"),
        ("cut:after=3", False, "cancelled", "connect_error"),
        ("cut:after=3", True, "unfinished", "unfinished"),
        ("error-event:after=3", True, "cancelled", "stream_error"),
        ("error-event:after=3", False, "cancelled", "http_error"),
        ("malformed-event:after=3", True, "completed", "stream_error"),
        ("malformed-event:after=3", True, "cancelled", "stream_error"),
        ("stall:after=3,seconds=1", True, "completed", "completed"),
        ("stall:after=3,seconds=1", True, "cancelled", "cancelled"),
        ("wrong-usage:by=1", True, "completed", "completed"),
    ],
)
def test_the_outcome_is_what_the_client_saw(
    fault: str, streamed: bool, scheduled: Outcome, seen: Outcome
) -> None:
    """Of a fault that struck."""
    row = RequestRow(
        id="S1", prompt_tokens=1, output_tokens=5, streamed=streamed, fault=fault, outcome=scheduled
    )
    settle(row)
    assert row.outcome == seen
    assert (row.error is None) == (seen == scheduled)


@pytest.mark.parametrize(
    ("outcome", "fault", "scheduled", "reason"),
    [
        ("completed", None, True, "length"),
        ("cancelled", None, True, "abort"),  # in the queue, too
        ("unfinished", None, True, "abort"),
        ("truncated", "cut:after=0", True, "error"),
        ("stream_error", "error-event:after=2", True, "error"),
        ("rejected", None, True, None),
        ("http_error", "http-500", False, None),
        ("truncated", "script:x", False, None),
    ],
)
def test_who_was_in_the_queue_is_counted_by_the_reason_of_its_end(
    outcome: Outcome, fault: str | None, scheduled: bool, reason: str | None
) -> None:
    """As the metrics' page has it, also where no token had come."""
    row = RequestRow(id="S1", prompt_tokens=1, output_tokens=5, tokens=0, fault=fault, outcome=outcome)
    row.ticks = Ticks(received=3) if scheduled else None
    assert finish_reason(row) == reason


SETUP = SchedulerSettings(policy="immediate", max_batch=1, max_wait_ns=0, hardware=Hardware())


class Leaving(Client):
    """A client whose request leaves with its second token."""

    world: World
    job: Job

    def token(self, index: int, last: bool) -> bytes:
        if index == 1:
            self.world.engine.cancel(self.job, True)
        return super().token(index, last)


def test_a_fault_takes_effect_at_the_next_tick_however_late_its_own_runs() -> None:
    """Ticks that run together after a stall: not a token more, whoever else left meanwhile."""
    world = World(SETUP)
    sink = Leaving()
    sink.world, sink.job = world, Job(None, 1, 9, sink)
    world.engine.submit(sink.job)
    other = world.submit(1, 9)
    world.pass_time(20 * TICK_NS)
    world.engine.cancel(other)
    world.run_out()
    first, second = world.rows
    assert first.ticks is not None
    assert second.ticks is not None
    assert sink.tokens == [0, 1]
    assert first.ticks.cancel == (first.ticks.first_token or 0) + 2
    assert second.ticks.prefill_start == first.ticks.cancel  # the slot was free
    assert [row.ticks for row in world.resimulate()[0]] == [first.ticks, second.ticks]


def test_a_request_set_aside_is_in_the_ledger_and_in_no_tick() -> None:
    """It may be the first of all, and come before others end; a simulation has its row as it was."""
    world = World(SETUP)
    rows = [RequestRow(id="", prompt_tokens=0, output_tokens=0, fault="http-500") for _ in range(2)]
    world.engine.set_aside(rows[0])
    assert world.engine.due_ns is None
    assert not world.engine.idle
    world.pass_time(5)
    world.submit(1, 2)
    world.engine.end_aside(rows[0], "http_error", 500)
    world.run_out()
    world.pass_time(TICK_NS)
    world.engine.set_aside(rows[1])
    world.engine.end_aside(rows[1], "http_error", 500)
    simulated, ticks = world.resimulate()
    assert [row.id for row in world.rows] == [row.id for row in simulated] == ["S1", "S2", "S3"]
    for served, again in zip(world.rows, simulated, strict=True):
        assert (served.outcome, served.ticks, served.received_ns) == (
            again.outcome,
            again.ticks,
            again.received_ns,
        )
    assert (world.rows[0].received_ns, world.rows[1].received_ns) == (0, 5)
    assert len(ticks) == len([tick for tick in world.ticks if not tick.idle or tick.events])


def test_requests_set_aside_are_simulated_in_the_order_in_which_they_ended() -> None:
    """As served: the first to come may have been the last to end, before and after others."""
    world = World(SETUP)
    rows = [RequestRow(id="", prompt_tokens=0, output_tokens=0, fault="script:x") for _ in range(3)]
    for row in rows:
        world.engine.set_aside(row)
    world.submit(1, 2)
    world.engine.end_aside(rows[1], "completed", 200)
    world.run_out()
    world.pass_time(5 * TICK_NS)
    world.engine.end_aside(rows[2], "completed", 200)
    world.pass_time(1)
    world.engine.end_aside(rows[0], "completed", 200)
    simulated, _ = world.resimulate()
    assert [row.id for row in world.rows] == ["S2", "S4", "S3", "S1"]
    assert [row.id for row in simulated] == ["S2", "S4", "S3", "S1"]


def test_an_agreement_takes_a_fault_for_an_input_that_moved() -> None:
    """The client saw the error that was served; nothing before it may differ, and nothing did."""
    run = inputs()
    for side in (run.served, run.resimulated):
        row = side.rows["D"]
        row.fault, row.ticks, row.outcome, row.http_status = "http-500", None, "http_error", 500
        row.token_ns = None
    seen = run.measured["D"]
    seen.outcome, seen.http_status, seen.token_ns = "http_error", 500, None
    agreement = compare(run)
    assert (agreement.verdict, agreement.reasons) == ("agree", [])
    assert agreement.plan.moved == ["D"]
    seen.outcome = "completed"
    assert compare(run).timing.outcome_different == ["D"]
