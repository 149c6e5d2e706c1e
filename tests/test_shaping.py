"""Shaping a trace: what each step leaves, in which order, and what seeds draw."""

from __future__ import annotations

import json
from fractions import Fraction
from math import floor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers import shaping
from ledgers.errors import InputError
from ledgers.ledger import Ledger
from ledgers.load import load_ledger
from ledgers.shaping import Shaping
from tests.memory import bytes_each

S = 1_000_000_000
Row = dict[str, Any]
PLAIN: list[Row] = [
    {"arrival_s": 100 + second, "prompt_tokens": 10 + number, "output_tokens": 1 + number, "class": name}
    for number, (second, name) in enumerate([(0, "a"), (1, "b"), (4, "a"), (4, "b"), (9, "a")])
]


def write(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def shaped(tmp_path: Path, rows: list[Row], seed: int = 0, **settings: Any) -> Ledger:
    source = write(tmp_path / "trace.jsonl", rows)
    return load_ledger(source, seed=seed, shaping=Shaping(**settings))


def ids(ledger: Ledger) -> list[str]:
    return [row.id for row in ledger.rows]


def arrivals(ledger: Ledger) -> list[int | None]:
    return [row.arrival_ns for row in ledger.rows]


def lengths(ledger: Ledger) -> list[tuple[int, int]]:
    return [(row.prompt_tokens, row.output_tokens) for row in ledger.rows]


# --- slices, classes, counts


def test_a_slice_has_its_beginning_and_not_its_end(tmp_path: Path) -> None:
    """Seconds count from the trace's first request; the slice begins at 0 with its own."""
    ledger = shaped(tmp_path, PLAIN, from_s=Fraction(1), until_s=Fraction(9))
    assert (ids(ledger), arrivals(ledger)) == (["R02", "R03", "R04"], [0, 3 * S, 3 * S])
    assert ledger.notes[0] == "from 1 s until 9 s: 3 of 5 requests"
    assert ids(shaped(tmp_path, PLAIN, from_s=Fraction("4.000000001"))) == ["R05"]
    assert ids(shaped(tmp_path, PLAIN, until_s=Fraction(1))) == ["R01"]


def test_classes_are_picked_and_a_misspelt_one_is_refused(tmp_path: Path) -> None:
    assert ids(shaped(tmp_path, PLAIN, classes=("b",))) == ["R02", "R04"]
    assert ids(shaped(tmp_path, PLAIN, classes=("b", "a"))) == ["R01", "R02", "R03", "R04", "R05"]
    with pytest.raises(InputError, match="--class 'c': the requests have a, b"):
        shaped(tmp_path, PLAIN, classes=("a", "c"))


def test_time_comes_before_class_and_class_before_count(tmp_path: Path) -> None:
    """Of the requests from 1 s on the second of class a: R05, and not the second request, which is a b."""
    ledger = shaped(tmp_path, PLAIN, from_s=Fraction(1), classes=("a",), skip=1, num_prompts=1)
    assert ids(ledger) == ["R05"]
    assert ledger.notes[:3] == [
        "from 1 s on: 4 of 5 requests",
        "class a: 2 of 4 requests",
        "the first 1 of 2 requests skipped",
    ]


def test_a_count_begins_behind_what_is_skipped(tmp_path: Path) -> None:
    assert ids(shaped(tmp_path, PLAIN, skip=1, num_prompts=2)) == ["R02", "R03"]
    assert ids(shaped(tmp_path, PLAIN[::-1], skip=1, num_prompts=2)) == ["R04", "R02"]  # in order of time
    assert "9 requests asked for, the ledger has 5" in shaped(tmp_path, PLAIN, num_prompts=9).notes
    assert "9 requests asked for, 4 are left" in shaped(tmp_path, PLAIN, skip=1, num_prompts=9).notes


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"from_s": Fraction(10)}, "from 10 s on: none of 5 requests is left"),
        ({"from_s": Fraction(2), "until_s": Fraction(3)}, "none of 5 requests is left"),
        ({"from_s": Fraction(2), "until_s": Fraction(2)}, "--until 2: is not after --from 2"),
        ({"skip": 5}, "--skip 5: there are 5 requests"),
        ({"keep": Fraction(1, 10**9)}, "a share of 1e-09 kept by seed 0: none of 5"),
        ({"keep": Fraction(0)}, "--keep 0: is not a share"),
        ({"times": 0}, "--times 0: is not from 1 to 1,000"),
        ({"share_prefixes": True}, "--share-prefixes: .*needs --times"),
        ({"scale_output": Fraction(10**9)}, "--scale-output 1e.09: makes 5,000,000,000 tokens"),
    ],
)
def test_a_shape_that_cannot_be_meant_is_refused(
    tmp_path: Path, settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InputError, match=fault):
        shaped(tmp_path, PLAIN, **settings)


def test_a_shape_without_a_unit_has_no_seconds(tmp_path: Path) -> None:
    rows = [{"at": number, "prompt_tokens": 1, "output_tokens": 1} for number in range(3)]
    with pytest.raises(InputError, match="no times in seconds"):
        shaped(tmp_path, rows, from_s=Fraction(1))


# --- thinning


@pytest.mark.parametrize("seed", [0, 7])
def test_a_request_stays_by_the_draw_of_its_number(tmp_path: Path, seed: int) -> None:
    """The nth draw is the nth request's, whatever else is left out: a slice keeps the same ones."""
    rows = [{"arrival_s": n, "prompt_tokens": n + 1, "output_tokens": 1} for n in range(300)]
    random = Random(f"{seed}:keep")
    stay = [n for n, draw in enumerate([random.random() for _ in range(300)]) if draw < 0.3]
    kept = shaped(tmp_path, rows, seed, keep=Fraction("0.3"))
    assert [row.prompt_tokens - 1 for row in kept.rows] == stay
    part = shaped(tmp_path, rows, seed, keep=Fraction("0.3"), from_s=Fraction(100), until_s=Fraction(200))
    assert [row.prompt_tokens - 1 for row in part.rows] == [n for n in stay if 100 <= n < 200]
    more = shaped(tmp_path, rows, seed, keep=Fraction("0.6"))
    assert set(ids(kept)) < set(ids(more))


SESSIONS: list[Row] = [
    {
        "arrival_s": turn * 100 + number,
        "prompt_tokens": 5,
        "output_tokens": 1,
        "session": f"s{number}",
        "turn": turn,
    }
    for turn in range(3)
    for number in range(60)
]


def test_sessions_stay_whole_or_go_whole(tmp_path: Path) -> None:
    """By a draw of their names, in any file."""
    stay = {f"s{n}" for n in range(60) if Random(f"3:keep:s{n}").random() < 0.5}
    ledger = shaped(tmp_path, SESSIONS, seed=3, keep=Fraction(1, 2))
    assert sorted((row.session, row.turn) for row in ledger.rows) == sorted(
        (session, turn) for session in stay for turn in range(3)
    )
    assert ledger.notes[0] == (
        f"a share of 0.5 kept by seed 3, sessions whole: {3 * len(stay)} of 180 requests"
    )


# --- multiplying


def test_copies_come_between_a_request_and_the_next(tmp_path: Path) -> None:
    """By a drawn part of the gap, rounded down; those of the last use the gap before it."""
    ledger = shaped(tmp_path, PLAIN, seed=5, times=3)
    draws = {k: [random.random() for _ in range(5)] for k in (1, 2) for random in [Random(f"5:copy:{k}")]}
    gaps = [1 * S, 3 * S, 0, 5 * S, 5 * S]
    times = [0, 1 * S, 4 * S, 4 * S, 9 * S]
    expected = [(times[n], f"R{n + 1:02}") for n in range(5)]
    for k, copies in draws.items():
        expected += [
            (times[n] + floor(gaps[n] * Fraction(copies[n])), f"R{n + 1 + 5 * k:02}") for n in range(5)
        ]
    assert sorted(zip(arrivals(ledger), ids(ledger), strict=True)) == sorted(expected)
    assert arrivals(ledger) == sorted(arrivals(ledger))  # type: ignore[type-var]
    assert ledger.notes[0] == "5 requests times 3 by seed 5: 15"


def test_a_burst_stays_one(tmp_path: Path) -> None:
    rows = [{"arrival_s": 3, "prompt_tokens": 2, "output_tokens": 1}] * 4
    assert arrivals(shaped(tmp_path, rows, times=2)) == [0] * 8


def test_turns_of_a_copied_session_keep_their_distances(tmp_path: Path) -> None:
    ledger = shaped(tmp_path, SESSIONS, times=2)
    at: dict[str, list[int]] = {}
    for row in ledger.rows:
        assert row.turn == len(at.setdefault(str(row.session), []))
        at[str(row.session)].append(row.arrival_ns or 0)
    assert len(at) == 120
    for times in at.values():
        assert [time - times[0] for time in times] == [0, 100 * S, 200 * S]
    assert all(0 <= at[f"s{n}+2"][0] - at[f"s{n}"][0] < S for n in range(59))
    assert 0 <= at["s59+2"][0] - at["s59"][0] < 41 * S  # until the second turn of s0


LABELLED: list[Row] = [
    {"id": "x", "session": "s", "arrival_s": 0, "prompt_tokens": 9, "output_tokens": 1, "prefix": "p"},
    {"id": "x+2", "arrival_s": 1, "prompt_tokens": 9, "output_tokens": 1},
    {
        "id": "y",
        "arrival_s": 2,
        "prompt_tokens": 9,
        "output_tokens": 1,
        "hash_ids": [4, 7, 5],
        "block_tokens": 3,
    },
    {
        "id": "z",
        "arrival_s": 3,
        "prompt_tokens": 9,
        "output_tokens": 1,
        "hash_ids": [4, 8],
        "block_tokens": 3,
    },
]


def test_copies_share_nothing_unless_asked(tmp_path: Path) -> None:
    """Labels that are equal stay equal within a copy. An id that looks like a copy's costs nothing."""
    rows = {row.id: row for row in shaped(tmp_path, LABELLED, times=2).rows}
    assert set(rows) == {"x", "x+2", "y", "z", "x++2", "x+2++2", "y++2", "z++2"}
    assert (rows["x"].prefix, rows["x++2"].prefix) == ("p", "p+2")
    assert (rows["x"].session, rows["x++2"].session) == ("s", "s+2")
    assert (rows["y"].hash_ids, rows["z"].hash_ids) == ([4, 7, 5], [4, 8])
    (first, second, third), (also_first, other) = rows["y++2"].hash_ids or (), rows["z++2"].hash_ids or ()
    assert first == also_first
    assert len({first, second, third, other} | {4, 5, 7, 8}) == 8
    shared = {row.id: row for row in shaped(tmp_path, LABELLED, times=2, share_prefixes=True).rows}
    assert (shared["x++2"].prefix, shared["x++2"].session) == ("p", "s+2")
    assert shared["y++2"].hash_ids == [4, 7, 5]


def test_blocks_of_all_64_bits_can_be_copied(tmp_path: Path) -> None:
    """Their labels may change as long as the same are equal."""
    row = {"prompt_tokens": 9, "output_tokens": 1, "block_tokens": 3}
    blocks = [[-(2**63), 2**63 - 1], [2**63 - 1, 0]]
    rows = [{**row, "arrival_s": n, "hash_ids": hash_ids} for n, hash_ids in enumerate(blocks)]
    a, b, *copies = sorted(shaped(tmp_path, rows, times=2).rows, key=lambda row: row.id)
    assert a.hash_ids
    assert b.hash_ids
    assert a.hash_ids[1] == b.hash_ids[0]
    assert len({id for row in (a, b) for id in row.hash_ids or ()}) == 3
    assert not {id for row in (a, b) for id in row.hash_ids or ()} & {
        id for row in copies for id in row.hash_ids or ()
    }


def test_a_label_that_is_full_cannot_be_copied(tmp_path: Path) -> None:
    rows = [{"id": "i" * 200, "arrival_s": 0, "prompt_tokens": 9, "output_tokens": 1}]
    with pytest.raises(InputError, match=r"--times: id 'iii.*is too long"):
        shaped(tmp_path, rows, times=2)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.none() | st.sampled_from("abc")), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_copies_have_ids_of_their_own_and_all_else_as_often(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str | None]], times: int, seed: int
) -> None:
    trace = [
        {"arrival_s": at, "prompt_tokens": n + 1, "output_tokens": 1, "session": session}
        for n, (at, session) in enumerate(rows)
    ]
    ledger = shaped(tmp_path_factory.mktemp("times"), trace, seed, times=times)
    assert len(set(ids(ledger))) == len(ledger.rows) == times * len(rows)
    assert sorted(lengths(ledger)) == sorted((n + 1, 1) for n in range(len(rows)) for _ in range(times))
    turns: dict[str, list[int]] = {}
    for row in ledger.rows:
        if row.session:
            turns.setdefault(row.session, []).append(row.prompt_tokens)
    order = sorted(range(len(rows)), key=lambda n: rows[n][0])
    for session, prompts in turns.items():
        assert prompts == [n + 1 for n in order if rows[n][1] == session[0]]


# --- lengths


def test_lengths_are_scaled_half_to_even_and_then_cut(tmp_path: Path) -> None:
    """10 to 14 by half: 5, 5.5, 6, 6.5, 7. Outputs 1 to 5 by 1.5: 1.5, 3, 4.5, 6, 7.5, at most 6."""
    ledger = shaped(
        tmp_path,
        PLAIN,
        scale_prompt=Fraction(1, 2),
        scale_output=Fraction("1.5"),
        max_output=6,
    )
    assert lengths(ledger) == [(5, 2), (6, 3), (6, 4), (6, 6), (7, 6)]
    assert ledger.notes[:3] == [
        "prompts scaled by 0.5",
        "outputs scaled by 1.5",
        "outputs cut to 6 tokens: 1",
    ]
    assert lengths(shaped(tmp_path, PLAIN, scale_output=Fraction(1, 100), max_prompt=11))[::2] == [
        (10, 1),
        (11, 1),
        (11, 1),
    ]


def test_what_a_prompt_shares_is_cut_with_it(tmp_path: Path) -> None:
    row = {"output_tokens": 1, "arrival_s": 0, "prompt_tokens": 100}
    rows: list[Row] = [
        {**row, "hash_ids": [1, 2, 3, 4], "block_tokens": 25},
        {**row, "prefix": "p", "prefix_tokens": 60},
        {**row, "prefix": "p"},
    ]
    blocks, prefix, half = shaped(tmp_path, rows, max_prompt=51).rows
    assert (blocks.prompt_tokens, blocks.hash_ids, blocks.block_tokens) == (51, [1, 2, 3], 25)
    assert (prefix.prefix_tokens, half.prefix_tokens) == (51, None)
    blocks, prefix, half = shaped(tmp_path, rows, scale_prompt=Fraction(1, 4)).rows
    assert (blocks.hash_ids, prefix.prefix_tokens, half.prefix) == ([1], 15, "p")
    blocks, prefix, _ = shaped(tmp_path, rows, scale_prompt=Fraction(2)).rows
    assert (blocks.prompt_tokens, blocks.hash_ids, prefix.prefix_tokens) == (200, [1, 2, 3, 4], 120)


def test_a_text_that_no_longer_has_its_length_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    rows = [{"prompt": "one two three", "output_tokens": 1}, {"prompt": "one", "output_tokens": 1}]
    source = write(tmp_path / "texts.jsonl", rows)
    whole = load_ledger(source, request_rate="inf")
    most = whole.rows[1].prompt_tokens
    assert most < whole.rows[0].prompt_tokens
    ledger = load_ledger(source, request_rate="inf", shaping=Shaping(max_prompt=most))
    assert [row.prompt for row in ledger.rows] == [None, "one"]
    assert "texts of prompts left out, whose length is another now: 1" in ledger.notes


def test_lengths_are_the_last_and_a_rate_is_of_what_is_left(tmp_path: Path) -> None:
    """5 requests twice are 10, which at 3 req/s come within 3 s."""
    source = write(tmp_path / "trace.jsonl", PLAIN)
    ledger = load_ledger(source, request_rate=Fraction(3), shaping=Shaping(times=2, max_prompt=12))
    assert (len(ledger.rows), ledger.rows[-1].arrival_ns) == (10, 3 * S)
    assert max(lengths(ledger))[0] == 12


def test_draws_are_made_as_far_as_rows_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for all rows of a file, which may be millions where a hundred are asked for."""
    counts: list[int] = []
    draws = shaping._draws

    def counted(name: str, count: int) -> Any:
        counts.append(count)
        return draws(name, count)

    monkeypatch.setattr(shaping, "_draws", counted)
    short = shaped(tmp_path, PLAIN, num_prompts=2, times=3, keep=Fraction(99, 100))
    assert max(counts) <= 2
    assert len(short.rows) % 3 == 0


def test_shaping_holds_rows_by_column(tmp_path: Path) -> None:
    """At the peak far below what a row object alone would take."""
    shaping = Shaping(from_s=Fraction(1), keep=Fraction(1, 2), times=2, scale_prompt=Fraction(2))

    def load(count: int) -> Ledger:
        rows = "".join(f"{n}.5,{n % 900 + 1},7\n" for n in range(count))
        path = tmp_path / "trace.csv"
        path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
        del rows
        return load_ledger(str(path), shaping=shaping)

    assert bytes_each(load) < 250
