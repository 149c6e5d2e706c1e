"""From what a user names to a planned ledger: order, arrivals, ids, notes, and what the flags mean."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import pytest

from ledgers.errors import InputError
from ledgers.formats.native import native_row
from ledgers.ledger import Ledger
from ledgers.load import cut_to_duration, load_ledger, make_ledger
from ledgers.options import (
    ledger_from,
    ledger_options,
    request_rate,
    scheduler_from,
    scheduler_options,
    window_from,
    window_options,
)
from ledgers.rows import encode
from ledgers.settings import PRESETS, Slo
from tests.memory import bytes_each

TRACES = Path(__file__).parent / "data" / "traces"
AZURE = str(TRACES / "azure_2023_conv.head8tail3.csv")
S = 1_000_000_000
# at_i / 4.52 * 15 / 4 s, worked out in exact fractions and rounded half to even.
TOY_AT_4_RPS_NS = [
    0,
    82964602,
    182522124,
    315265487,
    788163717,
    896017699,
    1012168142,
    1742256637,
    1825221239,
    1933075221,
    2613384956,
    2721238938,
    2820796460,
    3567477876,
    3650442478,
    3750000000,
]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write_file(text: str) -> str:
        path = tmp_path / "trace.csv"
        path.write_bytes(text.encode())
        return str(path)

    return write_file


def arrivals_of(ledger: Ledger) -> list[int | None]:
    return [row.arrival_ns for row in ledger.rows]


def ids_of(ledger: Ledger) -> list[str]:
    return [row.id for row in ledger.rows]


def native(times: list[str], column: str = "arrival_s") -> str:
    return f"{column},prompt_tokens,output_tokens\n" + "".join(f"{time},10,2\n" for time in times)


# --- the toy ledger


def test_toy_at_four_requests_per_second_arrives_as_the_golden_vectors_say() -> None:
    ledger = load_ledger("toy", request_rate=Fraction(4))
    assert arrivals_of(ledger) == TOY_AT_4_RPS_NS
    assert ids_of(ledger) == [f"R{number:02}" for number in range(1, 17)]
    first, last = ledger.rows[0], ledger.rows[-1]
    assert (first.prompt_tokens, first.output_tokens, first.class_) == (18, 12, "long")
    assert (last.prompt_tokens, last.output_tokens, last.class_) == (7, 3, "short")


def test_another_rate_stretches_the_toy_ledger_and_draws_no_other() -> None:
    half = arrivals_of(load_ledger("toy", request_rate=Fraction(2)))
    assert half[-1] == 7_500_000_000
    assert half[1] == 165_929_204  # 0.1 / 4.52 * 7.5 s


def test_a_shape_without_a_rate_is_refused() -> None:
    with pytest.raises(InputError, match=r"toy: at is a shape without a unit.*--preset"):
        load_ledger("toy")


# --- times of a trace


def test_a_trace_starts_at_zero_and_keeps_its_gaps() -> None:
    ledger = load_ledger(AZURE)
    assert arrivals_of(ledger)[:3] == [0, 4_314_579_000, 4_541_877_000]
    assert arrivals_of(ledger)[-1] == 3_501_721_937_000
    assert ledger.name == "azure_2023_conv.head8tail3.csv"


def test_speed_divides_and_a_rate_stretches(write: Callable[[str], str]) -> None:
    """1000, 1002, 1006 s: at speed 2 they come at 0, 1, 3 s, and at 1 req/s within 2 s."""
    source = write(native(["1000", "1002", "1006"]))
    assert arrivals_of(load_ledger(source)) == [0, 2 * S, 6 * S]
    assert arrivals_of(load_ledger(source, speed=Fraction(2))) == [0, 1 * S, 3 * S]
    stretched = load_ledger(source, request_rate=Fraction(1))
    assert arrivals_of(stretched) == [0, 666_666_667, 2 * S]
    assert stretched.notes == ["times stretched: 1 req/s over 2 s"]
    assert arrivals_of(load_ledger(source, request_rate="inf")) == [0, 0, 0]


def test_rows_out_of_time_order_are_sorted_stably_and_that_is_said(write: Callable[[str], str]) -> None:
    """0, 5, 3, 3, 9 are sent as 0, 3, 3, 5, 9, equal times in file order; one row came too late."""
    source = write(native(["0", "5", "3", "3", "9"]))
    ledger = load_ledger(source)
    assert ids_of(ledger) == ["R01", "R03", "R04", "R02", "R05"]
    assert arrivals_of(ledger) == [0, 3 * S, 3 * S, 5 * S, 9 * S]
    assert ledger.notes[0].startswith("1 row out of time order")
    assert load_ledger(write(native(["0", "3", "3"]))).notes == [
        "trace times at speed 1: 0.6667 req/s over 3 s"
    ]


def test_the_first_rows_in_time_are_taken_before_they_are_stretched(write: Callable[[str], str]) -> None:
    """Of 0, 50, 2, 1 s the first three are 0, 1, 2 s; at 1 req/s they span 2 s. Ids stay the file's."""
    source = write(native(["0", "50", "2", "1"]))
    ledger = load_ledger(source, num_prompts=3, request_rate=Fraction(1))
    assert arrivals_of(ledger) == [0, 1 * S, 2 * S]
    assert ids_of(ledger) == ["R01", "R04", "R03"]


def test_fewer_rows_than_asked_for_is_said() -> None:
    assert "500 requests asked for, the ledger has 11" in load_ledger(AZURE, num_prompts=500).notes


def test_ids_are_padded_to_the_length_of_the_file(write: Callable[[str], str]) -> None:
    source = write(native([str(time) for time in range(1000)]))
    assert ids_of(load_ledger(source, num_prompts=2)) == ["R0001", "R0002"]


def test_rows_of_a_trace_without_tokens_are_left_out_and_counted(write: Callable[[str], str]) -> None:
    """The first arrival is that of the first request that is left."""
    source = write(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,374,0\n2023-11-16 18:00:01,374,44\n"
        "2023-11-16 18:00:03,0,4\n2023-11-16 18:00:04,3,\n2023-11-16 18:00:05,3,1"
    )
    with pytest.raises(InputError, match="line 2: no output tokens"):
        load_ledger(source, strict=True)
    ledger = load_ledger(source)
    assert arrivals_of(ledger) == [0, 4 * S]
    assert ledger.notes[:2] == [
        "2 rows left out: no output tokens",
        "1 row left out: no prompt tokens",
    ]


def test_prompts_with_a_length_of_their_own_are_counted_among_those_taken(
    write: Callable[[str], str],
) -> None:
    """Of the three first, two were counted by another tokenizer; the lengths given are the ledger's."""
    lines = [
        {"prompt": "able about", "prompt_tokens": length, "output_tokens": 1, "arrival_s": at}
        for at, length in enumerate((2, 5, 7, 9))
    ]
    source = write("".join(json.dumps(line) + "\n" for line in lines))
    ledger = load_ledger(source, num_prompts=3)
    assert [row.prompt_tokens for row in ledger.rows] == [2, 5, 7]
    said = "another length by the mock's own count (agree and simulate need that one)"
    assert ledger.notes[0] == f"2 prompts have {said}"
    assert load_ledger(source, num_prompts=2).notes[0] == f"1 prompt has {said}"
    assert not any("own count" in note for note in load_ledger(source, num_prompts=1).notes)


# --- what prompts share


def test_a_ledger_written_out_by_agree_is_read_back_the_same(tmp_path: Path) -> None:
    """What prompts share is a part of the ledger, and of its digest."""
    source = str(TRACES / "mooncake_conversation.head12.jsonl")
    ledger = load_ledger(source, speed=Fraction(3))
    path = tmp_path / "planned.jsonl"
    path.write_bytes(b"".join(encode(native_row(row)) + b"\n" for row in ledger.rows))
    back = load_ledger(str(path))
    assert back.rows == ledger.rows
    assert back.rows[1].hash_ids == [0, *range(14, 28)]
    assert back.sha256() == ledger.sha256()
    back.rows = [*back.rows]
    back.rows[1].hash_ids = [1, *range(14, 28)]
    assert back.sha256() != ledger.sha256()


def test_a_prefix_comes_through_agree_as_well(write: Callable[[str], str], tmp_path: Path) -> None:
    text = "id,arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens\na,0,10,2,system,4\nb,0.5,9,2,,\n"
    ledger = load_ledger(write(text))
    path = tmp_path / "planned.jsonl"
    path.write_bytes(b"".join(encode(native_row(row)) + b"\n" for row in ledger.rows))
    assert load_ledger(str(path)).rows == ledger.rows
    assert (ledger.rows[0].prefix, ledger.rows[0].prefix_tokens, ledger.rows[1].prefix) == ("system", 4, None)


def test_more_labels_than_blocks_are_left_out_and_counted(write: Callable[[str], str]) -> None:
    """1024 tokens are two blocks of 512: a third label has nothing to stand for. Traces with one exist."""
    line = '{"timestamp": %d, "input_length": 1024, "output_length": 9, "hash_ids": [%s]}\n'
    ledger = load_ledger(write(line % (0, "1, 2, 3") + line % (9, "1, 2") + line % (20, "1")))
    assert [row.hash_ids for row in ledger.rows] == [[1, 2], [1, 2], [1]]
    assert ledger.notes[0].startswith("1 row with more hash_ids than the prompt has blocks")


# --- a run that is to end


def test_a_ledger_can_be_cut_to_a_duration(write: Callable[[str], str]) -> None:
    """0, 1, 2, 7 s cut to 2 s are 0 and 1: what arrives at the end is too late. It is said."""
    ledger = load_ledger(write(native(["0", "1", "2", "7"])))
    cut = cut_to_duration(ledger, Fraction(2))
    assert arrivals_of(cut) == [0, S]
    assert cut.notes == [*ledger.notes, "the last 2 of 4 requests left out: they arrive at 2 s or later"]
    assert len(ledger.rows) == 4
    assert cut_to_duration(ledger, Fraction(8)).notes == ledger.notes
    with pytest.raises(InputError, match=r"trace\.csv: no request arrives within 0 s"):
        cut_to_duration(ledger, Fraction(0))


# --- lengths without times


def test_lengths_without_times_need_an_arrival_process(write: Callable[[str], str]) -> None:
    source = write("prompt_tokens,output_tokens\n10,2\n20,2\n30,2\n")
    for settings in ({}, {"request_rate": Fraction(2)}):
        with pytest.raises(InputError, match="no arrival times, so give --arrival"):
            load_ledger(source, **settings)  # type: ignore[arg-type]
    ledger = load_ledger(source, arrival="constant", request_rate=Fraction(2))
    assert arrivals_of(ledger) == [0, S // 2, S]
    assert [row.prompt_tokens for row in ledger.rows] == [10, 20, 30]
    assert arrivals_of(load_ledger(source, request_rate="inf")) == [0, 0, 0]


def test_an_arrival_process_replaces_the_times_of_a_trace(write: Callable[[str], str]) -> None:
    """The order stays that of the times."""
    source = write(native(["7", "1", "100"]))
    ledger = load_ledger(source, arrival="constant", request_rate=Fraction(1))
    assert ids_of(ledger) == ["R02", "R01", "R03"]
    assert arrivals_of(ledger) == [0, S, 2 * S]


def test_one_seed_is_one_ledger_byte_for_byte() -> None:
    def drawn(seed: int) -> Ledger:
        return load_ledger("toy", arrival="poisson", request_rate=Fraction(10), seed=seed)

    assert drawn(7).sha256() == drawn(7).sha256()
    assert drawn(7).sha256() != drawn(8).sha256()
    assert "poisson arrivals drawn from seed 7" in drawn(7).notes[0]


def test_made_lengths_lie_within_the_range_and_reach_its_ends() -> None:
    """10 tokens with a ratio of 0.25 are 7 (7.5 rounded outwards) to 13, and 1 token never becomes 0."""
    ledger = make_ledger(2000, 10, 1, range_ratio=Fraction(1, 4), seed=3)
    prompts = {row.prompt_tokens for row in ledger.rows}
    assert prompts == set(range(7, 14))
    assert {row.output_tokens for row in ledger.rows} == {1, 2}
    assert arrivals_of(ledger) == [0] * 2000


def test_made_requests_arrive_like_those_of_vllms_benchmark() -> None:
    """Poisson at a rate; a burstiness alone makes it gamma; lengths do not change with the arrivals."""
    poisson = make_ledger(100, 512, 128, range_ratio=Fraction(1, 2), request_rate=Fraction(5))
    bursty = make_ledger(100, 512, 128, range_ratio=Fraction(1, 2), request_rate=Fraction(5), burstiness=0.2)
    assert "poisson arrivals" in poisson.notes[0]
    assert "gamma arrivals" in bursty.notes[0]
    assert [row.prompt_tokens for row in poisson.rows] == [row.prompt_tokens for row in bursty.rows]


# --- files that cannot be used


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "id,arrival_s,prompt_tokens,output_tokens\na,0,1,1\nb,1,1,1\na,2,1,1\n",
            "line 4: id 'a' is on line 2 already",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens\n0,1,1\n,1,1\n",
            "line 3: time is missing, but given on line 2",
        ),
        (
            "id,at,prompt_tokens,output_tokens\n,0,1,1\nx,0,1,1\n",
            "line 3: id is given, but missing on line 2",
        ),
        ("arrival_s,prompt_tokens,output_tokens\n", "no request in it"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,374,0\n",
            "no request in it: 1 row left out: no output tokens",
        ),
        (native(["0", "1e10"]), "its last request would arrive later than 1,000,000,000 s"),
    ],
)
def test_a_ledger_that_contradicts_itself_is_refused(
    write: Callable[[str], str], text: str, fault: str
) -> None:
    source = write(text)
    with pytest.raises(InputError) as caught:
        load_ledger(source)
    assert fault in str(caught.value)


def test_a_pipe_may_give_its_head_in_pieces(tmp_path: Path) -> None:
    """A header that comes a few bytes at a time is the same header."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def trickle() -> None:
        with pipe.open("wb", buffering=0) as file:
            for piece in (b"arrival_s,pro", b"mpt_tokens,output_to", b"kens\n0,5,2\n", b"1,5,2\n"):
                file.write(piece)
                time.sleep(0.02)

    writer = threading.Thread(target=trickle)
    writer.start()
    rows = load_ledger(str(pipe)).rows
    writer.join()
    assert [row.arrival_ns for row in rows] == [0, 1_000_000_000]


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.csv: No such file or directory"):
        load_ledger(str(tmp_path / "missing.csv"))
    with pytest.raises(InputError, match="a directory, but no run directory"):
        load_ledger(str(tmp_path))


def test_of_a_directory_the_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"date": 1, "command": 2}')
    with pytest.raises(InputError, match=r"settings\.json: no known trace format: its first keys are date"):
        load_ledger(str(tmp_path))


# --- long ledgers


@pytest.mark.parametrize("ids", [False, True])
def test_a_long_file_takes_few_bytes_per_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: bool
) -> None:
    """At the peak of loading it in order. As a row of its own a request takes 550 bytes."""
    monkeypatch.setattr("ledgers.load.HEAD_BYTES", 4096)  # what is read ahead would hide the rest

    def load(count: int) -> None:
        source = tmp_path / f"{count}.csv"
        with source.open("w") as file:
            file.write("id,"[: 3 * ids] + "arrival_s,prompt_tokens,output_tokens\n")
            for number in range(count):
                file.write(f"request-{number},"[: 99 * ids] + f"{number * 0.25},{number % 999 + 1},77\n")
        load_ledger(str(source))

    assert bytes_each(load, 3_000, 12_000) < (300 if ids else 120)


def test_a_long_ledger_that_is_made_takes_few_bytes_per_row() -> None:
    """Its rows are made when they are asked for; looking at all of them holds none."""

    def make(count: int) -> None:
        ledger = make_ledger(count, 100, 50, range_ratio=Fraction(1, 2), request_rate=Fraction(9))
        assert sum(row.prompt_tokens for row in ledger.rows) > 50 * count
        assert len(ledger.sha256()) == 64

    assert bytes_each(make, 3_000, 12_000) < 100


# --- flags


def parse(*args: str) -> dict[str, Any]:
    """The options of a command that takes all the shared flags."""

    @click.command()
    @ledger_options
    @scheduler_options(["static", "continuous"])
    @window_options
    def command(**options: Any) -> dict[str, Any]:
        return options

    options: dict[str, Any] = command.main(list(args), standalone_mode=False)
    return options


def test_toy_alone_means_the_head_of_line_preset() -> None:
    """And says so: 4 req/s, B = 4, W = 0.2 s, E2E within 1.55 s, a tail of 1.4 s, on the toy hardware."""
    options = parse("toy")
    ledger = ledger_from(options)
    assert arrivals_of(ledger) == TOY_AT_4_RPS_NS
    assert "preset head-of-line" in ledger.notes[0]
    scheduler, window = scheduler_from(options), window_from(options)
    assert (scheduler.policy, scheduler.max_batch, scheduler.max_wait_ns) == ("continuous", 4, S // 5)
    assert (scheduler.prefill_chunk, scheduler.hardware.tick_ns) == (8, S // 10)
    assert (window.slo, window.tail_ns) == (Slo(e2e_ms=1550), 1_400_000_000)


@pytest.mark.parametrize(("preset", "span_ns"), [("steady", 6_818_181_818), ("overload", 887_573_964)])
def test_a_preset_has_its_rate(preset: str, span_ns: int) -> None:
    """15 gaps at 2.2 and at 16.9 req/s. A preset needs no LEDGER."""
    assert arrivals_of(ledger_from(parse("--preset", preset)))[-1] == span_ns


def test_a_flag_wins_over_the_preset() -> None:
    flags = (
        "toy --preset busy --rate 10/3 --max-batch 2 --max-wait 0 --tail drain --tick 0.02 "
        "--policy static --prefill-chunk 16 --hardware medium --slo ttft:200"
    )
    options = parse(*flags.split())
    assert arrivals_of(ledger_from(options))[-1] == 4_500_000_000
    assert request_rate(options) == Fraction(10, 3)
    scheduler, window = scheduler_from(options), window_from(options)
    assert (scheduler.policy, scheduler.max_batch, scheduler.max_wait_ns) == ("static", 2, 0)
    assert (scheduler.prefill_chunk, scheduler.hardware.tick_s) == (16, 0.02)
    assert scheduler.hardware.decode_slots == 64
    assert (window.slo, window.tail_ns) == (Slo(ttft_ms=200), "drain")


def test_a_file_brings_no_slo_and_waits_for_all() -> None:
    options = parse(AZURE, "--speed", "2", "--num-prompts", "2")
    assert arrivals_of(ledger_from(options)) == [0, 2_157_289_500]
    assert (window_from(options).slo, window_from(options).tail_ns) == (Slo(), "drain")


@pytest.mark.parametrize(
    "words",
    [
        ["toy", "--goodput", "ttft:200", "tpot:50", "e2el:1500"],
        ["--goodput", "ttft:200", "tpot:50", "e2e:1500", "toy"],
        ["toy", "--goodput", "ttft:200 tpot:50 e2e:1500"],
        ["--goodput", "ttft:200", "--goodput", "tpot:50", "--slo=e2e:1500", "toy"],
    ],
)
def test_goodput_bounds_are_written_as_in_vllm_or_quoted_or_repeated(words: list[str]) -> None:
    options = parse(*words)
    assert options["ledger"] == "toy"
    assert window_from(options).slo == Slo(ttft_ms=200, tpot_ms=50, e2e_ms=1500)


def test_no_ledger_at_hand() -> None:
    options = parse(*["--num-prompts", "100", "--random-input-len", "512", "--random-output-len", "128"])
    ledger = ledger_from(options)
    assert len(ledger.rows) == 100
    assert {(row.prompt_tokens, row.output_tokens) for row in ledger.rows} == {(512, 128)}
    assert request_rate(options) == "inf"
    assert ids_of(ledger)[:2] == ["R001", "R002"]


def test_columns_map_any_file() -> None:
    burst = str(TRACES / "burstgpt_1.head3.csv")
    columns = "time=Timestamp,prompt=Total tokens,output=Response tokens,class=Model,unit=ms"
    rows = ledger_from(parse(burst, "--columns", columns)).rows
    assert [(row.class_, row.prompt_tokens, row.arrival_ns) for row in rows] == [
        ("ChatGPT", 490, 0),
        ("ChatGPT", 1317, 40_000_000),
        ("GPT-4", 693, 113_000_000),
    ]


def test_without_a_ledger_a_command_may_have_a_default() -> None:
    with pytest.raises(InputError, match="no LEDGER"):
        ledger_from(parse())
    assert ledger_from(parse(), default="toy").name == "toy"


@pytest.mark.parametrize("value", ["0", "-1", "nan", "-inf", "x", "", "1/0", "1e999999999", "9" * 5000])
@pytest.mark.parametrize("flag", ["--rate", "--speed", "--tick"])
def test_a_number_that_is_none_is_refused_by_the_flag(flag: str, value: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a number above 0"):
        parse("toy", flag, value)


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ("toy --speed 2", "speed"),
        (f"{AZURE} --preset busy", "--preset busy: belongs to the toy ledger"),
        ("--random-input-len 5 --random-output-len 5", "--num-prompts: is needed"),
        ("--num-prompts 5 --random-input-len 5", "--random-output-len: is needed"),
        ("toy --num-prompts 5 --random-input-len 5 --random-output-len 5", "LEDGER: means nothing beside"),
        ("toy --random-range-ratio 0.5", "--random-range-ratio: needs"),
        ("toy --columns prompt=a", "--columns: output= is missing"),
        (
            "--num-prompts 5 --random-input-len 5 --random-output-len 5 --columns prompt=a,output=b",
            "--columns: means nothing beside",
        ),
        ("toy --burstiness nan --arrival gamma", "burstiness nan"),
        ("toy --burstiness 0.5", "only gamma"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(args: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        ledger_from(parse(*args.split()))


def test_every_preset_is_of_the_toy_ledger() -> None:
    """A preset names a rate, and the rest is one setting: what commands without a LEDGER fall back to."""
    assert (
        len({(preset.max_batch, preset.max_wait_s, preset.slo, preset.tail_s) for preset in PRESETS.values()})
        == 1
    )
