"""Sessions in planned ledgers, in prompts and on the virtual clock: worked by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ledgers.errors import InputError
from ledgers.formats.native import write as write_native
from ledgers.load import load_ledger
from ledgers.profile import parse_stages
from ledgers.rows import RequestRow
from ledgers.sessions import turns_before
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.window import Window
from loadgen.requests import Requests, Share
from loadgen.wording import Wording
from mock_server.arrivals import Arrivals
from mock_server.policies import make_scheduler
from mock_server.simulate import simulate
from tests.conftest import json_lines, refused, tokentick
from tests.memory import bytes_each
from tests.test_prompts import prompt_of, shared_words

MS = 1_000_000
S = 1_000_000_000
TWO_SESSIONS = """\
id,session,turn,arrival_s,think_s,prompt_tokens,output_tokens
A1,A,1,0,,10,3
A2,A,2,,0.25,20,2
A3,A,3,,0,30,2
B1,B,1,0.1,,10,2
B2,B,2,,0.3,15,4
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write_file(text: str, name: str = "plan.csv") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write_file


def arrivals(source: str, **options: Any) -> list[tuple[str, int]]:
    return [(row.id, (row.arrival_ns or 0) // MS) for row in load_ledger(source, **options).rows]


# The planned ledger


def test_a_turn_is_planned_for_the_earliest_possible_time(write: Callable[[str], str]) -> None:
    """As if every answer took no time: think times are added up along a session; the rows are in order."""
    ledger = load_ledger(write(TWO_SESSIONS))
    assert [(row.id, (row.arrival_ns or 0) // MS, row.think_ns) for row in ledger.rows] == [
        ("A1", 0, None),
        ("B1", 100, None),
        ("A2", 250, 250 * MS),
        ("A3", 250, 0),
        ("B2", 400, 300 * MS),
    ]
    assert ledger.notes == [
        "2 sessions: 3 turns wait for the answer before them",
        "first turns: trace times at speed 1: 10 req/s over 0.1 s",
    ]


def test_speed_divides_think_times_and_a_rate_leaves_them(write: Callable[[str], str]) -> None:
    """A think time is time of the trace; a rate is that of the first turns alone."""
    source = write(TWO_SESSIONS)
    fast = [("A1", 0), ("B1", 50), ("A2", 125), ("A3", 125), ("B2", 200)]
    assert arrivals(source, speed=Fraction(2)) == fast
    slow = [("A1", 0), ("A2", 250), ("A3", 250), ("B1", 2000), ("B2", 2300)]
    assert arrivals(source, request_rate=Fraction(1, 2)) == slow
    assert arrivals(source, request_rate=Fraction(1, 2), arrival="constant") == slow
    at_once = [("A1", 0), ("B1", 0), ("A2", 250), ("A3", 250), ("B2", 300)]
    assert arrivals(source, request_rate="inf") == at_once


def test_turns_of_a_session_that_the_stages_leave_out_are_left_out(write: Callable[[str], str]) -> None:
    """Room for one first turn: the other session goes as a whole."""
    left = arrivals(write(TWO_SESSIONS), stages=parse_stages("1:0.5"), arrival="constant")
    assert left == [("A1", 0), ("A2", 250), ("A3", 250)]
    ledger = load_ledger(write(TWO_SESSIONS), stages=parse_stages("1:0.5"), arrival="constant")
    assert "1 session: 2 turns wait for the answer before them" in ledger.notes


def test_times_beside_think_times_are_the_users_choice(write: Callable[[str], str]) -> None:
    """By default the turn waits; `replay` keeps the trace's own times, and nothing waits."""
    source = write(
        "session,arrival_s,think_s,prompt_tokens,output_tokens\nA,0,,1,1\nB,1,,1,1\nA,7,2,1,1\nB,1.5,0.1,1,1\n"
    )
    assert arrivals(source) == [("R01", 0), ("R02", 1000), ("R04", 1100), ("R03", 2000)]
    replayed = load_ledger(source, sessions="replay")
    assert [row.arrival_ns for row in replayed.rows] == [0, S, 3 * S // 2, 7 * S]
    assert {row.think_ns for row in replayed.rows} == {None}


def test_only_the_first_requests_are_taken_and_sessions_stay_in_order(write: Callable[[str], str]) -> None:
    """Of a file that has session after session: the first three in order of the earliest possible time."""
    assert arrivals(write(TWO_SESSIONS), num_prompts=3) == [("A1", 0), ("B1", 100), ("A2", 250)]


def test_a_planned_ledger_reads_back_as_it_was_written(tmp_path: Path, write: Callable[[str], str]) -> None:
    """Native JSONL keeps sessions, turns, think times and planned arrivals, to the nanosecond."""
    ledger = load_ledger(write(TWO_SESSIONS), speed=Fraction(3))
    write_native(tmp_path / "again.jsonl", ledger.rows)
    again = load_ledger(str(tmp_path / "again.jsonl"))
    assert list(again.rows) == list(ledger.rows)
    assert again.sha256() == ledger.sha256()
    assert load_ledger(str(tmp_path / "again.jsonl"), sessions="replay").sha256() != ledger.sha256()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("A,1,0,\n,2,,1\n", ["line 3", "think_s", "without a session"]),
        ("A,1,0,\nA,2,,\n", ["line 3", "time is missing"]),
        ("A,1,0,\nB,2,,1\nB,1,3,\n", ["line 3", "no turn of session 'B' is above: the first needs a time"]),
        ("B,2,,1\nB,1,3,\n", ["line 2", "no turn of session 'B' is above: the first needs a time"]),
        ("A,2,0,\nA,1,,1\n", ["session A", "turn 1 would wait for turn 2"]),
        ("A,1,0,\nA,2,2,9\nA,3,5,\n", ["session A", "overlap"]),
        ("A,1,0,\nA,2,,-1\n", ["line 3", "think_s is '-1'"]),
    ],
    ids=["no session", "no time", "no turn above", "first row", "turns", "overlap", "negative"],
)
def test_sessions_that_contradict_themselves_are_refused(
    write: Callable[[str], str], lines: str, words: list[str]
) -> None:
    """One line that says where, or in which session, and what."""
    rows = "\n".join(f"{line},1,1" for line in lines.split()) + "\n"
    source = write("session,turn,arrival_s,think_s,prompt_tokens,output_tokens\n" + rows)
    with pytest.raises(InputError) as refusal:
        load_ledger(source)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_waiting_without_think_times_is_refused(write: Callable[[str], str]) -> None:
    """Nobody can say how long a turn is to wait."""
    source = write("session,arrival_s,prompt_tokens,output_tokens\nA,0,1,1\nA,1,1,1\n")
    with pytest.raises(InputError, match="no turn of a session has a think time"):
        load_ledger(source, sessions="wait")


# Shares and prompts


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_session_is_whole_in_one_share(write: Callable[[str], str], step: int) -> None:
    """All rows are in one share each, a turn with the one that it waits for."""
    rows = load_ledger(write(TWO_SESSIONS)).rows
    shares = [
        Requests(rows, Share(first, step), "x", closed=False, before=turns_before(rows))
        for first in range(step)
    ]
    assert sorted(row.id for share in shares for row in share) == ["A1", "A2", "A3", "B1", "B2"]
    pairs = {(share[one].id, share[other].id) for share in shares for one, other in share.behind.items()}
    assert pairs == {("A1", "A2"), ("A2", "A3"), ("B1", "B2")}
    assert sorted(at for share in shares for at in share.arrivals_ns()) == [0, 100 * MS]


def test_a_closed_loop_has_no_times() -> None:
    """Whatever the trace says: a request is due when it has a place."""
    rows = [RequestRow(id=f"{n}", prompt_tokens=1, output_tokens=1, arrival_ns=n * S) for n in range(4)]
    assert list(Requests(rows, Share(), "x", closed=True, before=None).arrivals_ns()) == [0, 0, 0, 0]


@pytest.mark.parametrize("lengths", [(2, 40, 3_000), (40, 41, 42), (300, 100, 200)])
def test_a_turn_begins_as_the_one_before_it(lengths: tuple[int, ...]) -> None:
    """One text per session, cut to the prompt's length; another session's is another from its first words."""
    rows = [
        RequestRow(id=f"{session}{n}", session=session, prompt_tokens=tokens, output_tokens=1, arrival_ns=n)
        for n, tokens in enumerate(lengths)
        for session in "AB"
    ]
    requests = Requests(rows, Share(), "x", closed=False, before=turns_before(rows))
    prompts = [prompt_of(row, requests.text_number(index), Wording()) for index, row in enumerate(requests)]
    of_a, of_b = prompts[::2], prompts[1::2]
    for text, later, tokens, more in zip(of_a, of_a[1:], lengths, lengths[1:], strict=False):
        assert shared_words(text, later) == min(tokens, more)
    assert [len(text.split()) for text in of_a] == list(lengths)
    assert all(shared_words(one, other) < 8 for one, other in zip(of_a, of_b, strict=True))


def test_what_a_ledger_says_is_shared_goes_before_the_session() -> None:
    """A prefix is the same in two sessions, and what follows it is each turn's own."""
    rows = [
        RequestRow(
            id=session, session=session, prompt_tokens=60, output_tokens=1, prefix="p", prefix_tokens=30
        )
        for session in "AAB"
    ]
    one, same, other = prompts_of(rows)
    assert 30 <= shared_words(one, other) <= 32
    assert 30 <= shared_words(one, same) <= 32


def test_turns_share_the_blocks_that_they_have_in_common() -> None:
    """Two of three blocks are the same; what no block covers is each turn's own."""
    blocks = {"A1": [1, 2, 3], "A2": [1, 2, 4], "A3": [1, 2]}
    rows = [
        RequestRow(id=id, session="A", prompt_tokens=60, output_tokens=1, hash_ids=ids, block_tokens=15)
        for id, ids in blocks.items()
    ]
    one, other, short = prompts_of(rows)
    assert 30 <= shared_words(one, other) <= 32
    assert 30 <= shared_words(one, short) <= 32
    uncovered = [one.split()[45:], other.split()[45:]]
    assert uncovered[0] != uncovered[1]


def prompts_of(rows: list[RequestRow]) -> list[str]:
    """As a run sends them."""
    requests = Requests(rows, Share(), "x", closed=False, before=None)
    return [prompt_of(row, requests.text_number(index), Wording()) for index, row in enumerate(requests)]


# On the virtual clock


def simulated(tmp_path: Path, ledger: str, *flags: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows by id, in order of their end, and the summary."""
    (tmp_path / "plan.csv").write_text(ledger)
    result = tokentick("simulate", "plan.csv", "--out", "run", "--json", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    rows: list[dict[str, Any]] = json_lines(tmp_path / "run" / "requests.jsonl")
    return {row["id"]: row for row in rows}, json.loads(result.stdout)


def test_turns_arrive_at_the_end_before_plus_their_think_time(tmp_path: Path) -> None:
    """One at a time on 100 ms ticks, a prompt of up to 24 tokens a tick.

    A1 prefills in tick 0 and emits at 1, 2, 3. B1 (arrived at 1) starts at 3 and emits at 4, 5. A2 arrives at
    300 + 250 ms, so in tick 6, and emits at 7, 8. B2 arrives at 500 + 300 ms: tick 8, in which A2 makes room;
    it emits at 9 to 12. A3 follows A2 at once: at 800 ms, behind the arrivals of tick 8, so in tick 9. It
    starts when B2 ends, at 12, takes two ticks for 30 tokens, and emits at 14, 15.
    """
    rows, summary = simulated(tmp_path, TWO_SESSIONS, "--policy", "immediate")
    seen = {
        id: (
            row["arrival_ns"] // MS,
            [row["ticks"][name] for name in ("received", "prefill_start", "first_token", "last_token")],
        )
        for id, row in rows.items()
    }
    assert seen == {
        "A1": (0, [0, 0, 1, 3]),
        "B1": (100, [1, 3, 4, 5]),
        "A2": (550, [6, 6, 7, 8]),
        "B2": (800, [8, 8, 9, 12]),
        "A3": (800, [9, 12, 14, 15]),
    }
    assert list(rows) == ["A1", "B1", "A2", "B2", "A3"]
    assert (summary["completed"], summary["window_s"]) == (5, 1.5)


def test_a_session_ends_with_a_turn_that_was_rejected(tmp_path: Path) -> None:
    """B2 can never fit: B3 and B4 are not sent and say why, the other session goes on; nothing is lost."""
    ledger = TWO_SESSIONS.replace("B2,B,2,,0.3,15,4", "B2,B,2,,0.3,70,4\nB3,B,3,,0,5,1\nB4,B,4,,9,5,1")
    rows, summary = simulated(tmp_path, ledger, "--policy", "immediate", "--tail", "5")
    assert {id: row["outcome"] for id, row in rows.items()} == {
        "A1": "completed",
        "B1": "completed",
        "A2": "completed",
        "B2": "rejected",
        "A3": "completed",
        "B3": "not_sent",
        "B4": "not_sent",
    }
    for id in ("B3", "B4"):
        assert (rows[id]["arrival_ns"], rows[id]["error"]) == (None, "its session ended with B2: rejected")
    assert summary["sessions"] == {"count": 2, "whole": 1}
    counts = {name: summary[name] for name in ("scheduled", "completed", "rejected", "not_sent")}
    assert counts == {"scheduled": 7, "completed": 4, "rejected": 1, "not_sent": 2}
    assert summary["window_s"] == pytest.approx(0.8 + 5)  # A3, the last that arrived, and the tail


def test_the_window_ends_a_tail_after_the_last_real_arrival(tmp_path: Path) -> None:
    """A2 is planned for 100 ms and arrives at 600: its answer to 900 ms is in, with both of its gaps."""
    ledger = "session,arrival_s,think_s,prompt_tokens,output_tokens\nA,0,,1,5\nA,,0.1,1,3\n"
    _, summary = simulated(tmp_path, ledger, "--policy", "immediate", "--tail", "0.4", "--ticks", "none")
    assert (summary["completed"], summary["window_s"], summary["itl_ms"]["n"]) == (2, 1.0, 6)
    _, summary = simulated(tmp_path, ledger, "--policy", "immediate", "--tail", "0.2", "--out", "run2")
    assert (summary["completed"], summary["unfinished"]) == (1, 1)
    assert summary["itl_ms"]["n"] == 4


def test_rows_are_read_no_further_than_they_are_needed() -> None:
    """A million turns of one session: while the first is in flight, what is not due is not read."""
    read = 0

    def stream() -> Iterator[RequestRow]:
        nonlocal read
        for number in range(1_000_000):
            read += 1
            yield RequestRow(
                id=str(number),
                session="A",
                think_ns=S,
                prompt_tokens=1,
                output_tokens=1,
                arrival_ns=number * S,
            )

    settings = SchedulerSettings(policy="immediate", hardware=Hardware())
    rows = simulate(make_scheduler(settings), stream())
    first_two = [next(rows).arrival_ns, next(rows).arrival_ns]
    assert first_two == [0, 100 * MS + S]
    assert read < 10


def test_ends_release_in_order_of_time_and_of_the_ledger() -> None:
    """Two sessions whose turns come at the same instant: the ledger's order, whoever ended first."""
    plan = [("A1", "A", 0), ("B1", "B", 0), ("C1", None, 5), ("A2", "A", 10), ("B2", "B", 10)]
    rows = [
        RequestRow(
            id=id,
            session=session,
            think_ns=10 if at else None,
            prompt_tokens=1,
            output_tokens=1,
            arrival_ns=at,
        )
        for id, session, at in plan
    ]
    source = Arrivals(rows)
    assert source.next_ns() == 0
    assert [row.id for row in source.take(4)] == ["A1", "B1"]
    assert [row.id for row in source.take(20)] == ["C1"]
    source.ended("B1", 30, "completed")
    source.ended("A1", 30, "completed")
    assert source.take(39) == []
    assert [(row.id, row.arrival_ns) for row in source.take(40)] == [("A2", 40), ("B2", 40)]
    assert source.next_ns() is None


def test_sessions_that_do_not_wait_are_not_kept() -> None:
    """As labels they cost a simulation their text (some 50 bytes), and nothing that outlasts the request."""

    def simulating(session: Callable[[int], str | None]) -> Callable[[int], object]:
        def hold(count: int) -> object:
            rows = [
                RequestRow(
                    id="r", session=session(n), prompt_tokens=1, output_tokens=1, arrival_ns=n * 300 * MS
                )
                for n in range(count)
            ]
            scheduler = make_scheduler(SchedulerSettings(policy="immediate", hardware=Hardware()))
            return sum(1 for _ in simulate(scheduler, rows))

        return hold

    plain = bytes_each(simulating(lambda n: None), 500, 4_000)
    labelled = bytes_each(simulating(lambda n: f"S{n}"), 500, 4_000)
    assert labelled < plain + 100


def test_a_growing_window_takes_in_what_a_later_arrival_shows_to_be_in_it() -> None:
    """T_obs is the last arrival + 1 s: the answer that ended at 1.5 s belongs once one arrives at 1 s."""

    def row(arrival_ns: int, end_ns: int) -> RequestRow:
        times = {"first_token_ns": end_ns, "last_token_ns": end_ns, "end_ns": end_ns, "tokens": 1}
        return RequestRow(
            id="r", prompt_tokens=1, output_tokens=1, arrival_ns=arrival_ns, outcome="completed", **times
        )

    window: Window[str] = Window(0, 1.0, grows=True)
    assert window.take(row(0, 3 * S // 2), lambda: "first") == []
    assert window.take(row(S, 5 * S), lambda: "second") == ["first"]
    fixed: Window[str] = Window(S, 1.0, grows=False)
    assert [len(fixed.take(row(0, end), lambda: "")) for end in (2 * S, 2 * S + 1)] == [1, 0]


def test_think_times_are_no_matter_without_sessions(tmp_path: Path) -> None:
    """The flag is refused where it means nothing, in one line."""
    words = ["--num-prompts", "3", "--random-input-len", "4", "--random-output-len", "4"]
    refused(tokentick("simulate", *words, "--sessions", "wait", cwd=tmp_path), 2, "--sessions")
