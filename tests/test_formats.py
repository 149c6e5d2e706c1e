"""Trace formats: detected by their first bytes, read to the last digit, refused with line and field."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from ledgers.errors import InputError
from ledgers.formats import FORMATS, HEAD_BYTES, choose_format
from ledgers.formats.fields import NO_TIME, Skipped, TraceRow
from ledgers.formats.head import Head

TRACES = Path(__file__).parent / "data" / "traces"
S = 1_000_000_000
MS = 1_000_000


def rows_of(data: bytes | str, trace_format: str | None = None) -> list[TraceRow]:
    rows, skipped = read(data, trace_format)
    assert not skipped
    return rows


def read(data: bytes | str, trace_format: str | None = None) -> tuple[list[TraceRow], list[Skipped]]:
    content = data.encode() if isinstance(data, str) else data
    file = io.BufferedReader(io.BytesIO(content), HEAD_BYTES)
    records = list(choose_format(file, "trace", trace_format).read(file, "trace"))
    skipped = [record for record in records if isinstance(record, Skipped)]
    return [record for record in records if isinstance(record, TraceRow)], skipped


def refusal(data: bytes | str, trace_format: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        rows_of(data, trace_format)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 250
    return message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("azure_2023_conv.head8tail3.csv", "azure"),
        ("azure_2024_conv.head5tail5.csv", "azure"),
        ("azure_2024_code.head5.csv", "azure"),
        ("azure_2025_multimodal.head5tail5.csv", "azure"),
        ("inference_perf_trace.csv", "azure"),
        ("mooncake_conversation.head12.jsonl", "mooncake"),
        ("mooncake_aiperf.jsonl", "mooncake"),
        ("burstgpt_1.head3.csv", "burstgpt"),
        ("burstgpt_3.head4.csv", "burstgpt"),
        ("bailian_thinking.head1.jsonl", "bailian"),
        ("vidur_splitwise_conv.head11.csv", "vidur"),
        ("vidur_arxiv_summarization.head5.csv", "vidur"),
        ("sharegpt_inference_perf.json", "sharegpt"),
        ("otel_simple_chain.json", "otel"),
        ("weka_trace_0504.json", "weka"),
    ],
)
def test_a_format_is_known_by_its_content(name: str, expected: str) -> None:
    """Each excerpt of a real trace is taken by exactly one format."""
    head = Head((TRACES / name).read_bytes())
    assert [known for known, form in FORMATS.items() if form.detects(head)] == [expected]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt_tokens": 1, "output_tokens": 1}, "native"),
        ({"prompt": '"conversations": "spans", "resourceSpans"', "output_tokens": 1}, "native"),
        (
            {"id": "R1", "prompt_tokens": 1, "output_tokens": 1, "arrival_ns": 0, "outcome": "completed"},
            "rundir",
        ),
        ({"text_input": '{"chat_id": 1}', "output_length": 1}, "mooncake"),
        ({"messages": [{"role": "user", "content": '"block_size"'}], "output_length": 1}, "mooncake"),
        ({"input_length": 1, "hash_ids": [{"chat_id": 1}]}, "mooncake"),
        ({"chat_id": 1, "timestamp": 1, "input_length": 1}, "bailian"),
        ({"id": "a", "conversations": [{"from": "human", "value": "prompt_tokens"}]}, "sharegpt"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": [{"prompt_tokens": 1}]}]}]}, "otel"),
        ({"block_size": 64, "requests": [{"input_length": 1, "chat_id": 1}]}, "weka"),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("listed", [False, True])
def test_a_json_format_is_known_by_the_keys_of_its_records(
    record: dict[str, object], expected: str, indent: int | None, listed: bool
) -> None:
    """Not by what stands in a text or further inside, nor by how it is set out."""
    data = json.dumps([record] if listed else record, indent=indent).encode()
    assert [known for known, form in FORMATS.items() if form.detects(Head(data))] == [expected]


# --- Azure


def test_azure_2023_rows_keep_all_seven_fraction_digits() -> None:
    """The second request comes exactly 4.3145790 s after the first; the hour ends at 3501.7219370 s."""
    data = (TRACES / "azure_2023_conv.head8tail3.csv").read_bytes()
    assert data.count(b"\r\n") == 11
    assert not data.endswith(b"\n")
    rows = rows_of(data)
    first = rows[0].time_ns
    assert first is not None
    assert [(row.prompt_tokens, row.output_tokens) for row in rows[:3]] == [(374, 44), (396, 109), (879, 55)]
    assert (rows[-1].prompt_tokens, rows[-1].output_tokens) == (197, 183)
    assert [row.time_ns - first for row in rows[1:3]] == [4_314_579_000, 4_541_877_000]  # type: ignore[operator]
    assert rows[-1].time_ns - first == 3_501_721_937_000  # type: ignore[operator]
    assert first % S == 680_590_000


def test_the_seventh_digit_of_a_timestamp_counts() -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = rows_of(header + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:03.9799601,4808,10")
    assert rows[1].time_ns - rows[0].time_ns == 100  # type: ignore[operator]


def test_azure_2024_rows_carry_a_zone() -> None:
    """From the first row, 0.001163 s after midnight, to the last, six days and 23:59:59.995460 later."""
    rows = rows_of((TRACES / "azure_2024_conv.head5tail5.csv").read_bytes())
    week = 6 * 86_400 * S + 86_399_995_460_000 - 1_163_000
    assert rows[-1].time_ns - rows[0].time_ns == week  # type: ignore[operator]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text + "\n  \n",
        lambda text: text.replace(",", " , "),
    ],
)
def test_line_ends_byte_order_mark_and_blanks_change_nothing(change: Callable[[str], str]) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44"
    (row,) = rows_of(change(text))
    assert (row.prompt_tokens, row.output_tokens) == (374, 44)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("2023-13-16 18:15:46.68,374,44", "line 3: TIMESTAMP is '2023-13-16 18:15:46.68'"),
        ("46.68,374,44", "line 3: TIMESTAMP is '46.68'"),
        ("2023-11-16 18:15:46,-374,44", "line 3: ContextTokens is '-374'"),
        ("2023-11-16 18:15:46,374,4.5", "line 3: GeneratedTokens is '4.5'"),
        ("2023-11-16 18:15:46,374,nan", "line 3: GeneratedTokens is 'nan'"),
        ("2023-11-16 18:15:46,374", "line 3: 2 columns, but the header has 3"),
        ('2023-11-16 18:15:46,"374,44', "line 3: not CSV"),
    ],
)
def test_a_bad_azure_row_is_named_by_line_and_field(line: str, fault: str) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n"
    assert fault in refusal(header + line)


# --- Mooncake


def test_mooncake_timestamps_are_milliseconds() -> None:
    rows = rows_of((TRACES / "mooncake_conversation.head12.jsonl").read_bytes())
    assert [(row.time_ns, row.prompt_tokens, row.output_tokens) for row in rows[:2]] == [
        (0, 6758, 500),
        (0, 7322, 490),
    ]
    assert (rows[-1].time_ns, rows[-1].prompt_tokens, rows[-1].output_tokens) == (3 * S, 87169, 402)


def test_a_fraction_of_a_millisecond_is_exact() -> None:
    (row,) = rows_of('{"timestamp": 27482.123456, "input_length": 5, "output_length": 2}')
    assert row.time_ns == 27_482_123_456


def test_a_request_without_a_time_is_left_out_where_others_have_one() -> None:
    rows, skipped = read(
        '{"timestamp": 0, "input_length": 5, "output_length": 2}\n{"input_length": 5, "output_length": 2}\n'
    )
    assert len(rows) == 1
    assert skipped == [Skipped(2, NO_TIME)]


def test_mooncake_says_what_prompts_share() -> None:
    """Labels for blocks of 512 tokens, as many as each prompt has."""
    rows = rows_of((TRACES / "mooncake_conversation.head12.jsonl").read_bytes())
    assert {row.block_tokens for row in rows} == {512}
    assert rows[0].hash_ids == list(range(14))
    assert all(row.hash_ids and len(row.hash_ids) == -(-row.prompt_tokens // 512) for row in rows)


@pytest.mark.parametrize("hash_ids", ["", ', "hash_ids": null', ', "hash_ids": []'])
def test_a_prompt_may_share_nothing(hash_ids: str) -> None:
    (row,) = rows_of(f'{{"timestamp": 1, "input_length": 5, "output_length": 2{hash_ids}}}')
    assert (row.hash_ids, row.block_tokens) == (None, None)


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ('{"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": 7}', "hash_ids is 7"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": ["7"]}', "hash_ids holds '7'"),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [7.5]}',
            "hash_ids holds '7.5'",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [true]}',
            "hash_ids holds True",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [9223372036854775808]}',
            "not an integer of 64 bits",
        ),
        ('{"timestamp": 1, "input_length": 5, "output_length": true}', "output_length is True"),
        ('{"timestamp": 1, "input_length": -5, "output_length": 2}', "input_length is -5"),
        ('{"timestamp": 1, "input_length": 5.5, "output_length": 2}', "input_length is '5.5'"),
        ('{"timestamp": 1e999999999, "input_length": 5, "output_length": 2}', "timestamp is '1e999999999'"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 2}', "not a JSON object"),
        ('{"timestamp": 1, "input_length": 5, "output_', "not a JSON object"),
        ("[1, 2, 3]", "not a JSON object"),
        ('{"timestamp": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "not a JSON object"),
        ('{"timestamp": 1, "input_length": ' + "9" * 4000 + "}", "input_length is 9999"),
    ],
)
def test_a_bad_mooncake_row_is_named_by_line_and_field(record: str, fault: str) -> None:
    good = '{"timestamp": 0, "input_length": 5, "output_length": 2}\n'
    message = refusal(good + record)
    assert message.startswith("trace: line 2: ")
    assert fault in message


# --- native


def test_native_csv_can_say_everything() -> None:
    (row,) = rows_of(
        "id,arrival_s,prompt_tokens,output_tokens,class,session,turn,prefix,prefix_tokens\n"
        "a-1,1700000000.123456789,12,3,chat,s1,0,system,12\n"
    )
    assert row == TraceRow(
        line=2,
        time_ns=1_700_000_000_123_456_789,
        prompt_tokens=12,
        output_tokens=3,
        id="a-1",
        class_="chat",
        session="s1",
        turn=0,
        prefix="system",
        prefix_tokens=12,
    )


def test_native_jsonl_says_the_same_as_native_csv() -> None:
    """Numbers with more digits than a double holds stay exact in both, and null is not given."""
    text = "arrival_s,prompt_tokens,output_tokens,class\n1700000000.1234567891,12,3,chat\n"
    line = (
        '{"arrival_s": 1700000000.1234567891, "prompt_tokens": 12, "output_tokens": 3, "class": "chat", '
        '"session": null}'
    )
    (from_csv,), (from_json,) = rows_of(text), rows_of(line)
    assert from_csv.time_ns == from_json.time_ns == Fraction(17_000_000_001_234_567_891, 10)
    assert (from_json.class_, from_json.session) == ("chat", None)


def test_native_jsonl_labels_blocks() -> None:
    """Labels for fewer blocks than the prompt has say nothing of the rest."""
    line = '{"prompt_tokens": 40, "output_tokens": 3, "hash_ids": [7, -8], "block_tokens": 16}'
    (row,) = rows_of(line)
    assert (row.hash_ids, row.block_tokens) == ([7, -8], 16)
    assert "unknown column 'hash_ids'" in refusal("prompt_tokens,output_tokens,hash_ids\n1,1,1\n")


@pytest.mark.parametrize(
    ("shared", "fault"),
    [
        ({"prefix_tokens": 3}, "prefix_tokens is given without a prefix"),
        ({"prefix": "a", "prefix_tokens": 41}, "prefix_tokens is 41, but the prompt has 40"),
        ({"prefix": "a", "prefix_tokens": 0}, "prefix_tokens is 0"),
        ({"hash_ids": [1]}, "hash_ids and block_tokens need each other"),
        ({"block_tokens": 16}, "hash_ids and block_tokens need each other"),
        ({"hash_ids": [1], "block_tokens": 0}, "block_tokens is 0"),
        ({"hash_ids": [1, 2, 3, 4], "block_tokens": 16}, "4 hash_ids, but the prompt has 3 blocks"),
        ({"hash_ids": [1.5], "block_tokens": 16}, "hash_ids holds '1.5'"),
        ({"hash_ids": [1], "block_tokens": 16, "prefix": "a"}, "neither prompt nor prefix"),
        ({"hash_ids": [1], "block_tokens": 16, "prompt": "able " * 40}, "neither prompt nor prefix"),
    ],
)
def test_what_prompts_share_must_fit_them(shared: dict[str, object], fault: str) -> None:
    line = json.dumps({"prompt_tokens": 40, "output_tokens": 1, **shared})
    message = refusal(line)
    assert message.startswith("trace: line 1: ")
    assert fault in message


def test_a_shape_is_no_time() -> None:
    rows = rows_of("at,prompt_tokens,output_tokens\n0,1,1\n0.1,1,1\n")
    assert [(row.at, row.time_ns) for row in rows] == [(0, None), (Fraction(1, 10), None)]


def test_a_prompt_may_hold_commas_quotes_and_line_ends() -> None:
    """And lines are still counted as an editor counts them."""
    data = 'prompt,output_tokens\r\n"hello, ""you""\r\nthere",5\r\n"able",x\r\n'
    assert "line 4: output_tokens is 'x'" in refusal(data)
    rows = rows_of(data.replace("x", "7"))
    assert [(row.line, row.prompt, row.output_tokens) for row in rows] == [
        (2, 'hello, "you"\r\nthere', 5),
        (4, "able", 7),
    ]


def test_a_long_prompt_is_no_bad_csv() -> None:
    prompt = " ".join(["able"] * 100_000)
    (row,) = rows_of(f'output_tokens,prompt\n5,"{prompt}"\n')
    assert row.prompt_tokens == 100_000


def test_the_length_of_a_prompt_is_counted_from_its_text() -> None:
    (row,) = rows_of('{"prompt": "able about above", "output_tokens": 5}')
    assert (row.prompt_tokens, row.counted_otherwise) == (3, False)


@pytest.mark.parametrize(("given", "otherwise"), [(4, True), (3, False)])
def test_the_length_given_beside_a_prompt_stands(given: int, otherwise: bool) -> None:
    """Whoever made the trace counted with a tokenizer of their own."""
    (row,) = rows_of(json.dumps({"prompt": "able about above", "prompt_tokens": given, "output_tokens": 5}))
    assert (row.prompt, row.prompt_tokens, row.counted_otherwise) == ("able about above", given, otherwise)


def test_a_bad_length_beside_a_prompt_is_refused() -> None:
    line = '{"prompt": "able about above", "prompt_tokens": %s, "output_tokens": 5}'
    assert "prompt_tokens is 0, not a whole number" in refusal(line % 0)
    assert "prefix_tokens is 4, but the prompt has 3" in refusal(
        line % '3, "prefix": "a", "prefix_tokens": 4'
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_tokens", "0"),
        ("prompt_tokens", "-1"),
        ("prompt_tokens", "1.5"),
        ("prompt_tokens", "nan"),
        ("prompt_tokens", "inf"),
        ("prompt_tokens", "1e9"),
        ("prompt_tokens", "٣"),
        ("prompt_tokens", "1_000"),
        ("prompt_tokens", "9" * 5000),
        ("prompt_tokens", ""),
        ("output_tokens", "0"),
        ("output_tokens", "None"),
        ("arrival_s", "-0.1"),
        ("arrival_s", "nan"),
        ("arrival_s", "inf"),
        ("arrival_s", "1e999999999"),
        ("arrival_s", "1/3"),
        ("arrival_s", "2023-11-16"),
        ("turn", "-1"),
        ("turn", "x"),
        ("id", "a\tb"),
        ("id", "x" * 201),
    ],
)
def test_a_bad_native_cell_is_named_by_line_and_field(field: str, value: str) -> None:
    cells = {"id": "a", "arrival_s": "0", "prompt_tokens": "1", "output_tokens": "1", "turn": "0"}
    good, bad = ",".join(cells.values()), ",".join({**cells, field: value}.values())
    message = refusal(f"{','.join(cells)}\n{good}\n{bad}\n")
    assert message.startswith(f"trace: line 3: {field} is ")


@pytest.mark.parametrize("value", [1.5, 1, True, ["x"]])
def test_a_prompt_is_a_text(value: object) -> None:
    """A number would be sent as one word, which nobody meant."""
    line = json.dumps({"prompt": value, "output_tokens": 1})
    assert refusal(line).startswith("trace: line 1: prompt is ")


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, "x", [1], 10**30])
def test_a_bad_native_json_value_is_named_by_line_and_field(value: object) -> None:
    line = json.dumps({"prompt_tokens": 1, "output_tokens": value})
    assert refusal(line).startswith("trace: line 1: output_tokens is ")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ("prompt_token,output_tokens\n1,1\n", "line 1: unknown column 'prompt_token', known are"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "arival_s": 0}', "line 1: unknown column 'arival_s'"),
        ("prompt_tokens,arrival_s\n1,1\n", "line 1: no column output_tokens"),
        ("arrival_s,output_tokens\n1,1\n", "line 2: prompt_tokens is missing"),
        ("at,at,prompt_tokens,output_tokens\n1,1,1,1\n", "line 1: column 'at' is there twice"),
        ("at,arrival_s,prompt_tokens,output_tokens\n1,1,1,1\n", "line 2: arrival_s and at are both given"),
        ('{"prompt": 5, "output_tokens": 1}', "line 1: prompt is 5, not a text"),
        ('{"prompt": "\\ud800", "output_tokens": 1}', "line 1: not a JSON object"),
        ("", "the file is empty"),
        ("\ufeff\n \n", "the file is empty"),
        ("hello\n", "no known trace format: its first line is 'hello'; say what is what: --columns time="),
        ("when,in,out\n1,2,3\n", "no known trace format: its columns are when, in, out; say what is what"),
        ('[{"when": 1, "in": {"n": 2}, "out": 3}]', "its first keys are when, in, out; say what is what"),
        (b"\x7fELF\x00\x01\xff", "it is not a text file"),
        (b"\x1f\x8b\x08\x00", "it is compressed (gunzip it first)"),
        (b"PAR1\x15\x04", "it is a Parquet file; say what is what: --columns"),
        (b"prompt_tokens,output_tokens\n1,1\n1,\xff\n", "line 3: not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused_in_one_line(data: bytes | str, fault: str) -> None:
    assert fault in refusal(data)


def test_a_format_can_be_forced() -> None:
    data = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n"
    assert "line 1: no column output_tokens" in refusal(data, "native")
    assert "known are native, azure, burstgpt, vidur, mooncake, bailian" in refusal(data, "parquet")


class LongFile(io.RawIOBase):
    """A file that lies nowhere: a header, and then a line over and over, up to a size."""

    def __init__(self, header: bytes, line: bytes, size: int) -> None:
        self._next = header
        self._block = line * max(1, 32_768 // len(line))
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if not self._next and self._left > 0:
            self._next = self._block
            self._left -= len(self._block)
        data, self._next = self._next[: len(buffer)], self._next[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


@pytest.mark.parametrize(
    ("trace_format", "header", "line"),
    [
        (
            "mooncake",
            b"",
            b'{"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [1, 2]}\n',
        ),
        (
            "azure",
            b"TIMESTAMP,ContextTokens,GeneratedTokens,Note\n",
            b"2023-11-16 18:15:46.6805900,374,44,%b\n" % (b"x" * 150),
        ),
        ("native", b"arrival_s,prompt_tokens,output_tokens,class\n", b"12.5,374,44,%b\n" % (b"x" * 150)),
    ],
    ids=["mooncake", "azure", "native"],
)
def test_a_long_file_is_read_in_constant_memory(trace_format: str, header: bytes, line: bytes) -> None:
    size = 1 << 20
    file = io.BufferedReader(LongFile(header, line, size), 32_768)
    tracemalloc.start()
    try:
        count = sum(1 for _ in FORMATS[trace_format].read(file, "trace"))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count >= size // len(line)
    assert peak_bytes < size // 4


def test_a_file_without_line_ends_is_not_slurped() -> None:
    """A line is bounded: 16 MiB, whatever comes behind."""
    file = io.BufferedReader(LongFile(b"", b"a", 1 << 40), 32_768)
    with pytest.raises(InputError, match="line 1: longer than 16,777,216 bytes"):
        list(FORMATS["mooncake"].read(file, "trace"))


def test_an_unclosed_quote_is_not_slurped() -> None:
    file = io.BufferedReader(LongFile(b'prompt,output_tokens\n"', b"able\n", 1 << 40), 32_768)
    with pytest.raises(InputError, match="line 2: not CSV: field larger than field limit"):
        list(FORMATS["native"].read(file, "trace"))
