"""`tokentick trace convert` and `trace make` as a user runs them; what is saved reads back as it was."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.formats.native import native_row
from ledgers.load import load_ledger
from ledgers.rows import encode
from ledgers.saving import save_ledger
from ledgers.shaping import Shaping
from tests.conftest import json_lines, on_full_disk, refused, tokentick

S = 1_000_000_000
TRACES = Path(__file__).parent / "data" / "traces"
AZURE = str(TRACES / "azure_2023_conv.head300.csv")
MOONCAKE = str(TRACES / "mooncake_conversation.head300.jsonl")

labels = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda text: text.isprintable() and text == text.strip()
)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda text: bool(text.strip()))
counts = st.integers(1, 10**9)


@st.composite
def native_rows(draw: st.DrawFn) -> dict[str, Any]:
    row: dict[str, Any] = {"prompt_tokens": draw(counts), "output_tokens": draw(counts)}
    for field, values in (("class", labels), ("session", labels), ("turn", st.integers(0, 99))):
        if (value := draw(st.none() | values)) is not None:
            row[field] = value
    row["arrival_s"] = draw(st.integers(0, 10**9)) / 1000
    if (prompt := draw(st.none() | texts)) is not None:
        row["prompt"] = prompt
    if (prefix := draw(st.none() | labels)) is not None:
        row |= {"prefix": prefix, "prefix_tokens": draw(st.integers(1, row["prompt_tokens"]))}
    return row


@given(
    st.lists(native_rows(), min_size=1, max_size=12),
    st.sampled_from([".csv", ".jsonl"]),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_what_is_saved_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], suffix: str, times: int, seed: int
) -> None:
    """Shaped or not, and whatever is in the texts."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "in.jsonl").write_bytes(b"".join(encode(row) + b"\n" for row in rows))
    shaping = Shaping(times=times, scale_output=Fraction(1, 3))
    ledger = load_ledger(str(folder / "in.jsonl"), seed=seed, shaping=shaping)
    save_ledger(folder / f"out{suffix}", ledger.rows)
    back = load_ledger(str(folder / f"out{suffix}"))
    assert list(back.rows) == list(ledger.rows)
    assert back.sha256() == ledger.sha256()


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_real_traces_read_back_equal(tmp_path: Path, suffix: str) -> None:
    """Azure's times have seven digits. A request keeps the number that it is called by."""
    ledger = load_ledger(AZURE, shaping=Shaping(skip=100, keep=Fraction(1, 3)))
    save_ledger(tmp_path / f"out.{suffix}", ledger.rows)
    assert load_ledger(str(tmp_path / f"out.{suffix}")).rows == ledger.rows


def test_sessions_keep_their_turns_and_think_times(tmp_path: Path) -> None:
    rows = [
        {"session": "s", "turn": 0, "arrival_s": 0, "prompt_tokens": 5, "output_tokens": 1},
        {"session": "s", "turn": 1, "arrival_s": 2.5, "think_s": 2.5, "prompt_tokens": 9, "output_tokens": 1},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("out.csv", "out.jsonl"):
        result = tokentick("trace", "convert", "in.jsonl", name, "--times", "2", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        saved = load_ledger(str(tmp_path / name)).rows
        turns = sorted((row.session, row.turn, row.think_ns) for row in saved)
        think = 2_500_000_000
        assert turns == [("s", 0, None), ("s", 1, think), ("s+2", 0, None), ("s+2", 1, think)]


def test_a_trace_is_cut_and_saved(tmp_path: Path) -> None:
    """What was done is said, and the file is a ledger as any other."""
    result = tokentick(
        "trace",
        "convert",
        AZURE,
        "part.csv",
        "--from",
        "1",
        "--until",
        "60",
        "--max-prompt",
        "1000",
        cwd=tmp_path,
    )
    assert (result.returncode, result.stdout) == (0, "")
    first_ns = load_ledger(AZURE).rows
    expected = [row for row in first_ns if S <= (row.arrival_ns or 0) < 60 * S]
    saved = load_ledger(str(tmp_path / "part.csv")).rows
    assert [row.prompt_tokens for row in saved] == [min(row.prompt_tokens, 1000) for row in expected]
    zero = expected[0].arrival_ns or 0
    assert [row.arrival_ns for row in saved] == [(row.arrival_ns or 0) - zero for row in expected]
    assert f"from 1 s until 60 s: {len(expected)} of 300 requests" in result.stderr
    assert result.stderr.endswith(f"part.csv: {len(expected)} requests\n")
    assert [path.name for path in tmp_path.iterdir()] == ["part.csv"]


def test_what_csv_cannot_hold_is_said(tmp_path: Path) -> None:
    result = tokentick("trace", "convert", MOONCAKE, "out.csv", cwd=tmp_path)
    assert "hash_ids of 300 requests left out: CSV cannot hold them" in result.stderr
    result = tokentick("trace", "convert", MOONCAKE, "out.jsonl", cwd=tmp_path)
    assert "left out" not in result.stderr
    assert load_ledger(str(tmp_path / "out.jsonl")).rows == load_ledger(MOONCAKE).rows


def test_standard_output_gets_jsonl_alone(tmp_path: Path) -> None:
    result = tokentick("trace", "convert", "toy", "-", "--num-prompts", "3", cwd=tmp_path)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["id"], row["prompt_tokens"]) for row in rows] == [("R01", 18), ("R02", 6), ("R03", 5)]


def test_a_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("mine")
    command = ["trace", "convert", "toy", "out.csv"]
    refused(tokentick(*command, cwd=tmp_path), 2, "out.csv: exists (--force replaces it)")
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert tokentick(*command, "--force", cwd=tmp_path).returncode == 0
    assert len(load_ledger(str(tmp_path / "out.csv")).rows) == 16


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to("file.jsonl")
    result = tokentick(
        "trace", "convert", "toy", "link.jsonl", "--rate", "1", "--num-prompts", "1", "--force", cwd=tmp_path
    )
    assert result.returncode == 0
    assert result.stderr.splitlines()[-1] == "link.jsonl: 1 request"
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len((tmp_path / "file.jsonl").read_bytes().splitlines()) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_line_of_a_message_is_one_whatever_a_file_is_called(tmp_path: Path) -> None:
    result = tokentick("trace", "convert", "no\nsuch", "out.csv", cwd=tmp_path)
    assert result.stderr == "tokentick: no\\nsuch: No such file or directory\n"


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """One line, exit code 2, no half of a file, and nothing beside it."""
    (tmp_path / "out.jsonl").write_text("mine")
    command = ["trace", "convert", AZURE, "out.jsonl", "--force"]
    result = tokentick(*command, cwd=tmp_path, command=on_full_disk(4_000))
    refused(result, 2, "out.jsonl: File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "mine"


def test_a_ledger_is_shaped_wherever_one_is_taken(tmp_path: Path) -> None:
    result = tokentick(
        "simulate",
        "toy",
        "--class",
        "short",
        "--times",
        "2",
        "--max-output",
        "1",
        "--out",
        "run",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    rows = json_lines(tmp_path / "run" / "requests.jsonl")
    assert {(row["class"], row["output_tokens"]) for row in rows} == {("short", 1)}
    assert len(rows) == 2 * sum(row.class_ == "short" for row in load_ledger("toy", request_rate="inf").rows)


def test_a_mix_is_made_and_comes_out_alike_each_time(tmp_path: Path) -> None:
    flags = ["--mix", "short=0.8,uniform:5-9,3", "--mix", "long=0.2,lognormal:90:0.5,30", "--seed", "3"]
    command = ["trace", "make", "-", "--num-prompts", "40", "--request-rate", "5", *flags]
    one, other = (tokentick(*command, cwd=tmp_path) for _ in range(2))
    assert one.stdout == other.stdout
    rows = [json.loads(line) for line in one.stdout.splitlines()]
    assert len(rows) == 40
    assert {(row["class"], row["output_tokens"]) for row in rows} == {("short", 3), ("long", 30)}
    assert "poisson arrivals drawn from seed 3" in one.stderr


def test_lengths_of_a_trace_come_in_pairs(tmp_path: Path) -> None:
    command = ["trace", "make", "out.csv", "--num-prompts", "500", "--prompt-len", f"empirical:{AZURE}"]
    assert tokentick(*command, cwd=tmp_path).returncode == 0
    pairs = {(row.prompt_tokens, row.output_tokens) for row in load_ledger(AZURE).rows}
    made = {(row.prompt_tokens, row.output_tokens) for row in load_ledger(str(tmp_path / "out.csv")).rows}
    assert made <= pairs
    assert len(made) > 150


def test_recipes_are_listed_and_made(tmp_path: Path) -> None:
    listed = tokentick("trace", "make", "--recipe", "list", cwd=tmp_path).stdout.splitlines()
    assert max(map(len, listed)) <= 80
    assert [line.split()[0] for line in listed if line[0] != " "] == [
        "long-first",
        "bursts",
        "mixed-lengths",
        "kv-limit",
        "impatient",
    ]
    command = ["trace", "make", "out.jsonl", "--recipe", "impatient", "--num-prompts", "50"]
    result = tokentick(*command, "--hardware", "medium", cwd=tmp_path)
    assert "goes with: tokentick run out.jsonl --first-token-timeout 1 --cancel-rate 0.3" in result.stderr
    assert len(load_ledger(str(tmp_path / "out.jsonl")).rows) == 50


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("convert toy", "Missing argument 'OUT'"),
        ("convert toy out.txt", "out.txt: name it .jsonl or .csv"),
        ("convert toy none/out.csv", "there is no directory none"),
        ("convert none.csv out.csv", "none.csv: No such file"),
        ("convert toy out.csv --keep 2", "'--keep': '2' is not a number above 0 and at most 1"),
        ("convert toy out.csv --times 0", "'--times'"),
        ("convert toy out.csv --from x", "'--from': 'x' is not a number"),
        ("convert toy out.csv --from 1", "no times in seconds"),
        ("convert toy out.csv --class no", "--class 'no': the requests have long, medium, short"),
        ("make", "no OUT"),
        ("make out.csv --num-prompts 3", "no lengths: give --prompt-len"),
        ("make out.csv --prompt-len 3 --output-len 3", "--num-prompts: is needed"),
        ("make out.csv --num-prompts 3 --prompt-len a --output-len 3", "--prompt-len: 'a'"),
        (
            "make out.csv --num-prompts 3 --prompt-len 3 --output-len uniform:5-1",
            "--output-len: 'uniform:5-1'",
        ),
        (
            "make out.csv --num-prompts 3 --prompt-len 99999999999 --output-len 3",
            "are from 1 to 1,000,000,000",
        ),
        ("convert toy out.csv/", "out.csv/: is the name of a directory"),
        ("make out.csv --num-prompts 3 --prompt-len 3 --mix a=1,2,3", "--mix: says the lengths"),
        ("make out.csv --num-prompts 3 --mix a=1,2,3 --mix a=1,2,3", "class a is there twice"),
        ("make out.csv --num-prompts 3 --mix a=1,2,3 --arrival poisson", "needs a request rate"),
        ("make out.csv --num-prompts 3 --mix a=1,2,3 --hardware medium", "--hardware: means nothing"),
        ("make out.csv --recipe bursts", "--num-prompts: is needed with --recipe bursts"),
        ("make out.csv --recipe bursts --num-prompts 3 --rate 2", "--request-rate: means nothing beside"),
        ("make out.csv --recipe none --num-prompts 3", "'--recipe'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_line(tmp_path: Path, arguments: str, fault: str) -> None:
    refused(tokentick("trace", *arguments.split(), cwd=tmp_path), 2, fault)
    assert not list(tmp_path.iterdir())


def test_a_planned_row_is_written_with_all_of_its_nanoseconds(tmp_path: Path) -> None:
    ledger = load_ledger("toy", request_rate=Fraction(4))
    assert encode(native_row(ledger.rows[1])).endswith(b'"arrival_s":0.082964602}')
    save_ledger(tmp_path / "toy.csv", ledger.rows)
    assert (tmp_path / "toy.csv").read_bytes().splitlines(keepends=True)[:3] == [
        b"arrival_s,prompt_tokens,output_tokens,id,class\n",
        b"0.000000000,18,12,R01,long\n",
        b"0.082964602,6,2,R02,short\n",
    ]
