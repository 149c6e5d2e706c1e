"""Every trace format but our own: rows worked out by hand, and the traps that real files have."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgers.errors import InputError
from ledgers.formats import FORMATS, HEAD_BYTES, choose_format
from ledgers.formats.documents import raw_documents
from ledgers.formats.fields import NO_TIME, Skipped, TraceRow
from ledgers.formats.mapped import parse_columns
from ledgers.load import load_ledger
from ledgers.rows import RequestRow, encode
from tests.test_formats import MS, TRACES, S, read, refusal, rows_of

HALF_PAST = 1_700_000_000_000_000_000  # 2023-11-14 22:13:20 UTC


def lengths(rows: list[TraceRow]) -> list[tuple[int, int]]:
    return [(row.prompt_tokens, row.output_tokens) for row in rows]


def jsonl(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def sample(name: str) -> list[TraceRow]:
    return rows_of((TRACES / name).read_bytes())


# --- CSV


def test_azure_multimodal_rows_count_text_tokens_alone() -> None:
    rows = sample("azure_2025_multimodal.head5tail5.csv")
    assert lengths(rows)[:2] == [(770, 491), (949, 126)]
    assert rows[1].time_ns - rows[0].time_ns == 5_550 * MS  # type: ignore[operator]
    assert rows[-1].time_ns - rows[0].time_ns == 7 * 86_400 * S - 305 * MS  # type: ignore[operator]


@pytest.mark.parametrize("zone", ["", "Z", "+00:00", "+0000", "+02:00", "-05:30"])
def test_a_zone_is_taken_off(zone: str) -> None:
    hours = {"+02:00": -2, "-05:30": Fraction(11, 2)}.get(zone, 0)
    (row,) = rows_of(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-14T22:13:20{zone},1,1\n")
    assert row.time_ns == HALF_PAST + hours * 3600 * S


def test_a_row_without_a_time_is_left_out() -> None:
    rows, skipped = read("TIMESTAMP,ContextTokens,GeneratedTokens\n,5,5\n2023-11-14 22:13:20,1,1\n")
    assert (len(rows), skipped) == (1, [Skipped(2, NO_TIME)])


def test_vidur_seconds_keep_their_digits() -> None:
    """5.8926549999999995 s is what the file says, so it is what is read."""
    rows = sample("vidur_splitwise_conv.head11.csv")
    assert lengths(rows)[:2] == [(374, 44), (396, 109)]
    assert [row.time_ns for row in rows[:2]] == [0, 4_314_579_000]
    assert rows[4].time_ns == Fraction(58_926_549_999_999_995, 10**7)


def test_vidur_lengths_may_have_no_times() -> None:
    rows = sample("vidur_arxiv_summarization.head5.csv")
    assert lengths(rows)[:2] == [(3772, 54), (2015, 156)]
    assert {row.time_ns for row in rows} == {None}


def test_burstgpt_of_six_columns() -> None:
    rows = sample("burstgpt_1.head3.csv")
    assert [(row.time_ns, row.prompt_tokens, row.output_tokens) for row in rows] == [
        (5 * S, 472, 18),
        (45 * S, 1087, 230),
        (118 * S, 417, 276),
    ]
    assert {(row.class_, row.session) for row in rows} == {("Conversation log", None)}


def test_burstgpt_of_eight_columns_has_sessions() -> None:
    rows = sample("burstgpt_3.head4.csv")
    assert rows[0].time_ns == 19_440_110 * S
    assert rows[0].session == "1722ac82-0a46-4bf0-aa08-89794e7a2b3f"
    assert lengths(rows) == [(906, 446), (36, 29), (1779, 123), (935, 178)]


def test_a_burstgpt_failure_has_no_output(tmp_path: Path) -> None:
    """Loading counts it by its reason; an empty session or type is none."""
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.5,,,GPT-4,472.0,0,472,API log\n6,,,GPT-4,10,0.0,10,\n7.25,,,GPT-4,20.0,3,23,\n"
    )
    ledger = load_ledger(str(path))
    assert [(row.prompt_tokens, row.output_tokens, row.class_) for row in ledger.rows] == [(20, 3, None)]
    assert "2 rows left out: no output tokens" in ledger.notes


# --- Mooncake's relatives


def test_bailian_counts_in_seconds_and_blocks_of_16() -> None:
    (row,) = sample("bailian_thinking.head1.jsonl")
    assert (row.time_ns, row.prompt_tokens, row.output_tokens) == (0, 502, 1494)
    assert (row.hash_ids, row.block_tokens) == (list(range(32)), 16)
    assert (row.session, row.turn, row.class_) == ("0", 1, "thinking")


def test_a_bailian_session_is_known_by_its_first_turn() -> None:
    turn = {"timestamp": "61.114", "input_length": 5, "output_length": 2}
    rows = rows_of(
        jsonl(
            {**turn, "chat_id": 159, "parent_chat_id": -1, "turn": 1},
            {**turn, "chat_id": 7, "turn": 1},
            {**turn, "chat_id": 160, "parent_chat_id": 159, "turn": 2},
            {**turn, "chat_id": 161, "parent_chat_id": 160, "turn": 3},
            {**turn, "chat_id": 9, "parent_chat_id": 2, "turn": 2},
        )
    )
    assert [(row.session, row.turn) for row in rows] == [
        ("159", 1),
        ("7", 1),
        ("159", 2),
        ("159", 3),
        ("2", 2),
    ]
    assert {row.time_ns for row in rows} == {61_114 * MS}


def test_aiperf_rows_may_lack_hash_ids() -> None:
    rows = sample("mooncake_aiperf.jsonl")
    assert [(row.time_ns, row.hash_ids) for row in rows[1:3]] == [(50 * MS, None), (120 * MS, [1, 2, 3])]


def test_aiperf_sessions_wait_their_delay_behind_the_answer() -> None:
    """A turn's planned time is the earliest there is; one with a time of its own keeps it."""
    rows = rows_of(
        jsonl(
            {"session_id": "a", "timestamp": 1000, "input_length": 10, "output_length": 4},
            {"session_id": "b", "timestamp": 1500, "input_length": 10, "output_length": 4},
            {"session_id": "a", "delay": 250.5, "input_length": 20, "output_length": 4},
            {"session_id": "a", "input_length": 30, "output_length": 4},
            {"session_id": "b", "timestamp": 9000, "input_length": 20, "output_length": 4},
        )
    )
    assert [(row.session, row.turn, row.time_ns, row.think_ns) for row in rows] == [
        ("a", 0, 1_000_000_000, None),
        ("b", 0, 1_500_000_000, None),
        ("a", 1, 1_250_500_000, 250_500_000),
        ("a", 2, 1_250_500_000, 0),
        ("b", 1, 9_000_000_000, None),
    ]


def test_aiperf_files_may_have_no_times() -> None:
    rows = rows_of(
        jsonl(
            {"session_id": "a", "input_length": 10, "output_length": 4},
            {"session_id": "a", "delay": 1, "input_length": 10, "output_length": 4},
        )
    )
    assert [(row.time_ns, row.think_ns) for row in rows] == [(None, None), (None, MS)]


def test_aiperf_prompts_may_be_texts_or_messages() -> None:
    parts = [{"type": "text", "text": "above across"}, {"type": "image_url", "image_url": {"url": "x"}}]
    rows, skipped = read(
        jsonl(
            {"text_input": "able about", "output_length": 4},
            {"messages": [{"role": "system", "content": "able"}, {"role": "user", "content": parts}]},
            {"messages": [{"role": "user", "content": "able"}], "message_mode": "delta", "session_id": "a"},
            {"payload": {"prompt": "able"}, "timestamp": 5},
        )
    )
    assert [(row.prompt, row.prompt_tokens, row.output_tokens) for row in rows] == [
        ("able about", 2, 4),
        ("able\nabove across", 3, 0),
    ]
    assert [record.line for record in skipped] == [3, 4]


# --- conversations


def test_each_answer_to_a_human_is_a_turn_of_the_conversation_so_far() -> None:
    """Words that the vocabulary lacks are one token per four bytes: "gpt's" is two."""
    said = [
        ("system", "act able"),
        ("human", "about above"),
        ("gpt", "gpt's act"),
        ("gpt", "again"),
        ("human", "age"),
        ("assistant", ""),
        ("gpt", "air"),
    ]
    record = {"id": "x_0", "conversations": [{"from": speaker, "value": text} for speaker, text in said]}
    rows = rows_of(json.dumps([record]))
    assert [(row.prompt, row.prompt_tokens, row.output_tokens) for row in rows] == [
        ("act able\nabout above", 4, 3),
        ("act able\nabout above\ngpt's act\nagain\nage", 9, 0),
    ]
    assert [(row.session, row.turn, row.time_ns, row.think_ns) for row in rows] == [
        ("x_0", 0, None, None),
        ("x_0", 1, None, 0),
    ]


def test_sharegpt_as_it_is_published() -> None:
    """By the mock's count: a word that the vocabulary lacks, as Hello!, is one token per four bytes."""
    rows = sample("sharegpt_inference_perf.json")
    assert [(row.line, row.session, row.prompt) for row in rows] == [
        (2, "1", "Hello!"),
        (15, "2", "What is 2+2?"),
    ]
    assert lengths(rows) == [(2, 6), (3, 3)]


def test_a_conversation_without_an_answer_is_left_out() -> None:
    lone = {
        "id": "a",
        "conversations": [{"from": "gpt", "value": "able"}, {"from": "human", "value": "able"}],
    }
    rows, skipped = read(jsonl(lone, {"id": "b", "conversations": []}))
    assert not rows
    assert {record.reason for record in skipped} == {"no human message with an answer"}


# --- agentic sessions

WEKA = {"id": "w", "block_size": 64, "hash_id_scope": "local"}


def call(t: float | int, **more: object) -> dict[str, object]:
    return {"t": t, "type": "s", "in": 100, "out": 10, **more}


def test_weka_as_it_is_published() -> None:
    rows = sample("weka_trace_0504.json")
    assert lengths(rows) == [(11133, 139), (11300, 96), (11306, 102)]
    assert [(row.time_ns, row.think_ns) for row in rows] == [(0, None), (13 * S, 4 * S), (3075 * S, 3058 * S)]
    assert [(row.session, row.turn, row.class_) for row in rows] == [
        ("trace_0504", n, "main") for n in range(3)
    ]
    assert {row.block_tokens for row in rows} == {64}
    assert rows[0].hash_ids == list(range(173))
    assert rows[1].hash_ids == list(range(176))


@pytest.mark.parametrize("inner", [[0, 2.5], [10, 12.5]], ids=["own clock", "clock of the session"])
def test_a_sub_agent_is_a_session_beside_its_own(inner: list[float]) -> None:
    """Called at 10 s, its calls are at 10 and 12.5 s, whether their times begin with it or not."""
    agent = {"t": 10, "type": "subagent", "agent_id": "agent_001", "requests": [call(t) for t in inner]}
    rows = rows_of(json.dumps({**WEKA, "requests": [call(0), agent, call(20, think_time=1.5)]}, indent=1))
    assert [(row.session, row.turn, row.class_, row.time_ns, row.think_ns) for row in rows] == [
        ("w", 0, "main", 0, None),
        ("w/agent_001", 0, "subagent", 10 * S, None),
        ("w/agent_001", 1, "subagent", 12_500 * MS, None),
        ("w", 1, "main", 20 * S, 1_500 * MS),
    ]


def test_a_pause_is_no_longer_than_since_the_turn_before() -> None:
    """Pauses over calls whose end was not recorded count from an earlier one."""
    rows = rows_of(
        json.dumps({**WEKA, "requests": [call(0), call(3052, think_time=3045), call(3060, think_time=3053)]})
    )
    assert [row.think_ns for row in rows] == [None, 3045 * S, 8 * S]


def test_local_hash_ids_mean_nothing_to_other_sessions() -> None:
    """But a sub-agent shares those of its session."""
    agent = {"t": 0, "type": "subagent", "agent_id": "a", "requests": [call(0, hash_ids=[1, 9])]}
    one = {**WEKA, "requests": [call(0, hash_ids=[1, 2]), agent]}
    two = {**WEKA, "id": "v", "requests": [call(0, hash_ids=[2, 1])]}
    assert [row.hash_ids for row in rows_of(jsonl(one, two))] == [[0, 1], [0, 2], [3, 4]]
    shared = [{**session, "hash_id_scope": "global"} for session in (one, two)]
    assert [row.hash_ids for row in rows_of(jsonl(*shared))] == [[1, 2], [1, 9], [2, 1]]
    assert "hash_id_scope is global, but local above" in refusal(jsonl(one, shared[1]))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"requests": [call(0), call("x")]}, "requests[1] of w: t is 'x'"),
        ({"requests": [call(0, hash_ids=[1.5])]}, "requests[0] of w: hash_ids holds '1.5'"),
        ({"requests": [{**call(0), "in": -5}]}, "requests[0] of w: in is -5"),
        ({"block_size": 0}, "block_size is 0"),
        ({"hash_id_scope": "here"}, "hash_id_scope is 'here'"),
        ({"requests": 5}, "not a session that can be read"),
    ],
)
def test_a_bad_session_is_named_by_line_and_request(change: dict[str, object], fault: str) -> None:
    good = {**WEKA, "requests": []}
    message = refusal(jsonl(good, {**WEKA, "requests": [], **change}))
    assert message.startswith("trace: line 2: ")
    assert fault in message


# --- OpenTelemetry


def otlp(*spans: dict[str, object], session: str | None = None) -> dict[str, object]:
    attributes = [{"key": "session.id", "value": {"stringValue": session}}] if session else []
    return {
        "resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": list(spans)}]}]
    }


def span(start: str | int, **attributes: object) -> dict[str, object]:
    names = {"prompt": "gen_ai.usage.input_tokens", "output": "gen_ai.usage.output_tokens"}
    listed = [
        {
            "key": names.get(key, key.replace("__", ".")),
            "value": value if isinstance(value, dict) else {"intValue": value},
        }
        for key, value in attributes.items()
    ]
    return {"traceId": "5B8E", "spanId": "EEE1", "startTimeUnixNano": start, "attributes": listed}


@pytest.mark.parametrize("start", ["1700000000123456789", 1_700_000_000_123_456_789])
def test_otlp_times_keep_all_19_digits(start: str | int) -> None:
    (row,) = rows_of(json.dumps(otlp(span(start, prompt="374", output=44))))
    assert row.time_ns == 1_700_000_000_123_456_789
    assert (row.prompt_tokens, row.output_tokens, row.session) == (374, 44, "5B8E")


def test_otlp_lines_with_the_older_names_and_a_session() -> None:
    named = {"gen_ai__usage__prompt_tokens": 5, "gen_ai__usage__completion_tokens": "2"}
    conversation = {"gen_ai__conversation__id": {"stringValue": "c"}}
    data = jsonl(
        otlp(span(1, **named), session="s"), otlp(span(2, **named, **conversation), span(1, **named))
    )
    rows = rows_of(data)
    assert [(row.line, row.time_ns, row.session) for row in rows] == [
        (1, 1, "s"),
        (2, 2, "c"),
        (2, 1, "5B8E"),
    ]
    assert lengths(rows) == [(5, 2)] * 3


def test_spans_that_are_no_calls_are_left_out() -> None:
    """An agent's usage is the sum of its calls'."""
    agent = span(1, prompt=5, output=2, gen_ai__operation__name={"stringValue": "invoke_agent"})
    rows, skipped = read(json.dumps(otlp(agent, span(2), span(3, prompt=5, output=2))))
    assert [row.time_ns for row in rows] == [3]
    assert [record.reason for record in skipped] == [
        "a span of another operation than a chat or a completion",
        "a span with neither token usage nor texts",
    ]


def test_collected_spans_without_usage_are_counted_by_their_texts() -> None:
    rows = sample("otel_simple_chain.json")
    assert rows[0].prompt == "What is the capital of France?"
    assert [(row.session, row.turn) for row in rows] == [("session", None)] * 3
    assert [row.time_ns - rows[0].time_ns for row in rows] == [0, 3 * S, 6 * S]  # type: ignore[operator]
    assert str(rows[1].prompt).startswith("What is the capital of France?\nThe capital of France")


def test_usage_stands_beside_texts() -> None:
    messages = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "able about"}]}])
    attributes = {
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.input.messages": messages,
    }
    spans = [{"trace_id": "t", "start_time": "2023-11-14T22:13:20.5Z", "attributes": attributes}]
    (row,) = rows_of(json.dumps({"spans": spans}))
    assert (row.prompt, row.prompt_tokens, row.counted_otherwise) == ("able about", 7, True)
    assert row.time_ns == HALF_PAST + 500 * MS


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"resourceSpans": [5]}, "resourceSpans is [5], not a list of objects"),
        (otlp(span("x", prompt=1, output=1)), "startTimeUnixNano is 'x'"),
        (otlp(span(1, prompt=-1, output=1)), "gen_ai.usage.input_tokens is -1"),
        (
            {
                "spans": [
                    {
                        "start_time": 5,
                        "attributes": {"gen_ai.usage.input_tokens": 1, "gen_ai.usage.output_tokens": 1},
                    }
                ]
            },
            "start_time is 5",
        ),
    ],
)
def test_a_bad_span_is_named_by_line_and_field(document: object, fault: str) -> None:
    assert f"line 1: {fault}" in refusal(json.dumps(document))


# --- run directories


def test_a_run_is_asked_for_again(tmp_path: Path) -> None:
    """At its intended arrivals: what was delivered where a request completed, else what was asked."""
    rows = [
        RequestRow(
            id="R1", prompt_tokens=10, output_tokens=8, arrival_ns=5, sent_ns=9, tokens=6, outcome="completed"
        ),
        RequestRow(
            id="R2",
            prompt_tokens=20,
            output_tokens=8,
            arrival_ns=7,
            tokens=2,
            outcome="timeout",
            session="s",
            turn=1,
            think_ns=4,
        ),
        RequestRow(
            id="R2.1", retry_of="R2", prompt_tokens=20, output_tokens=8, arrival_ns=7, outcome="completed"
        ),
        RequestRow(id="R3", prompt_tokens=30, output_tokens=8, arrival_ns=9, outcome="not_sent", class_="a"),
        RequestRow(
            id="R4", prompt_tokens=40, output_tokens=8, outcome="not_sent", session="s", turn=2, think_ns=6
        ),
    ]
    (tmp_path / "requests.jsonl").write_bytes(
        b"".join(encode(row) + b"\n" for row in rows) + b'{"id": "R5", "pro'
    )
    ledger = load_ledger(str(tmp_path))
    assert [(row.id, row.arrival_ns, row.prompt_tokens, row.output_tokens) for row in ledger.rows] == [
        ("R1", 0, 10, 6),
        ("R2", 2, 20, 8),
        ("R3", 4, 30, 8),
        ("R4", 8, 40, 8),
    ]
    assert [(row.session, row.turn, row.think_ns) for row in ledger.rows[1::2]] == [
        ("s", 1, None),
        ("s", 2, 6),
    ]
    assert ledger.rows[2].class_ == "a"
    assert "1 row left out: a further attempt of another request" in ledger.notes
    assert "1 row left out: half a row, where the file ends" in ledger.notes
    assert list(load_ledger(str(tmp_path / "requests.jsonl")).rows) == list(ledger.rows)


# --- any other file


def mapped(data: str, columns: str, tmp_path: Path) -> list[tuple[object, ...]]:
    path = tmp_path / "trace"
    path.write_text(data)
    with io.BufferedReader(io.FileIO(path), HEAD_BYTES) as file:
        form = choose_format(file, "trace", columns=parse_columns(columns))
        return [
            (row.time_ns, row.prompt_tokens, row.output_tokens)
            if isinstance(row, TraceRow)
            else (row.reason,)
            for row in form.read(file, "trace")
        ]


@pytest.mark.parametrize(
    ("unit", "time", "ns"),
    [
        ("ns", "1700000000123456789", 1_700_000_000_123_456_789),
        ("us", "1700000000123456.789", 1_700_000_000_123_456_789),
        ("ms", "1700000000123.456789", 1_700_000_000_123_456_789),
        ("s", "1700000000.123456789", 1_700_000_000_123_456_789),
        ("iso", "2023-11-14 22:13:20.1234567", 1_700_000_000_123_456_700),
    ],
)
def test_any_csv_or_jsonl_can_be_mapped(unit: str, time: str, ns: int, tmp_path: Path) -> None:
    """No digit is lost, and a unit is never taken from how large a number is."""
    columns = f"time=when,prompt=n in,output=n out,unit={unit}"
    assert mapped(f"when,x,n in,n out\n{time},0,12,3\n", columns, tmp_path) == [(ns, 12, 3)]
    value = f'"{time}"' if unit == "iso" else time
    line = '{"when": %s, "n in": "12", "n out": 3.0}'
    assert mapped(line % value, columns, tmp_path) == [(ns, 12, 3)]
    assert mapped(f"[{line % value},\n {line % value}]", columns, tmp_path) == [(ns, 12, 3)] * 2


def test_a_dot_leads_into_an_object(tmp_path: Path) -> None:
    data = jsonl({"usage": {"in": 5, "out": 2}, "a.b": 7}, {"usage": None, "a.b": 8})
    assert mapped(data, "prompt=usage.in,output=usage.out,time=a.b,unit=s", tmp_path) == [
        (7 * S, 5, 2),
        (8 * S, 0, 0),
    ]


def test_everything_that_can_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\ufeffwho,talk,n,kind,t,p,o\r\nq1,s1,2,chat,5,12,3\r\n\r\nq2,,,,,12,3\r\nq3,,,,4,1,0")
    columns = parse_columns("id=who,session=talk,turn=n,class=kind,time=t,prompt=p,output=o,unit=ms")
    ledger = load_ledger(str(path), columns=columns)
    (row,) = ledger.rows
    assert (row.id, row.session, row.turn, row.class_) == ("q1", "s1", 2, "chat")
    assert {"1 row left out: no time", "1 row left out: no output tokens"} <= set(ledger.notes)


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ("prompt=a", "output= is missing"),
        ("prompt=a,output=b,unit=s", "unit= means nothing without time="),
        ("prompt=a,output=b,time=c,unit=h", "unit is 'h', not one of ns, us, ms, s, iso"),
        ("prompt=a,output=b,colour=c", "--columns 'colour=c': give NAME=COLUMN"),
        ("prompt=a,output=", "--columns 'output=': give NAME=COLUMN"),
        ("prompt=a,output=b,prompt=c", "prompt is there twice"),
    ],
)
def test_a_bad_mapping_is_refused(columns: str, fault: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_columns(columns)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("data", "columns", "fault"),
    [
        ("a,b,c\n1,2,3\n", "prompt=a,output=b,time=c", "time= needs unit=ns|us|ms|s|iso"),
        ("a,b\n1,2\n", "prompt=a,output=z", "line 1: no column z"),
        ("a,b\n1,x\n", "prompt=a,output=b", "line 2: b is 'x'"),
        ("a,b,c\n1,2,3\n", "prompt=a,output=b,time=c,unit=iso", "line 2: c is '3', not a time YYYY"),
        ('{"a": 1, "b": 2.5}', "prompt=a,output=b", "line 1: b is '2.5'"),
        ('[{"a": 1, "b": 2}', "prompt=a,output=b", "the file ends within this value"),
    ],
)
def test_a_file_that_does_not_fit_its_mapping_is_refused(
    data: str, columns: str, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        mapped(data, columns, tmp_path)
    assert fault in str(caught.value)


def test_columns_stand_in_place_of_a_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="means nothing beside --trace-format azure"):
        load_ledger(str(path), trace_format="azure", columns=parse_columns("prompt=a,output=b"))


def test_parquet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"PAR1\x15\x04")
    with pytest.raises(InputError, match=r"Parquet needs pyarrow: pip install 'tokentick\[parquet\]'"):
        load_ledger(str(path), columns=parse_columns("prompt=a,output=b"))


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow")
def test_parquet_is_read_exactly(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "trace.parquet"
    when = pa.array([1_700_000_000_123_456_789, 1_700_000_000_123_456_790, None], pa.timestamp("ns", "UTC"))
    numbers = pa.array([0.1, 0.3, 5.0])
    usage = pa.array([{"in": 5.0, "at": when[0]}, {"in": 6.0, "at": when[1]}, None])
    table = pa.table({"when": when, "t": numbers, "usage": usage, "out": pa.array([2.0, float("nan"), 3.0])})
    pq.write_table(table, path)
    columns = "time=when,prompt=usage.in,output=out"
    with io.BufferedReader(io.FileIO(path), HEAD_BYTES) as file:
        rows = list(choose_format(file, "trace", columns=parse_columns(columns)).read(file, "trace"))
    assert rows == [
        TraceRow(line=1, time_ns=1_700_000_000_123_456_789, dated=True, prompt_tokens=5, output_tokens=2),
        TraceRow(line=2, time_ns=1_700_000_000_123_456_790, dated=True, prompt_tokens=6, output_tokens=0),
        Skipped(3, NO_TIME),
    ]
    with io.BufferedReader(io.FileIO(path), HEAD_BYTES) as file:
        mapping = parse_columns("time=usage.at,prompt=usage.in,output=out")
        assert list(choose_format(file, "trace", columns=mapping).read(file, "trace")) == rows
    ledger = load_ledger(str(path), columns=parse_columns("time=t,unit=s,prompt=out,output=out"))
    assert [row.arrival_ns for row in ledger.rows] == [0, 4_900_000_000]
    with pytest.raises(InputError, match="no column z in the Parquet file"):
        load_ledger(str(path), columns=parse_columns("prompt=z,output=out"))


# --- runs that were interrupted


def turn(number: int, arrival_ns: int | None, **fields: Any) -> RequestRow:
    think_ns = None if number == 1 else 6
    return RequestRow(
        id=f"R{number}",
        prompt_tokens=number,
        output_tokens=1,
        arrival_ns=arrival_ns,
        session="s",
        turn=number,
        think_ns=think_ns,
        outcome="unfinished" if arrival_ns is not None else "not_sent",
        **fields,
    )


def saved(tmp_path: Path, *rows: RequestRow) -> str:
    (tmp_path / "requests.jsonl").write_bytes(b"".join(encode(row) + b"\n" for row in rows))
    return str(tmp_path)


def test_turns_that_never_came_may_be_written_before_their_first_turn(tmp_path: Path) -> None:
    """Rows of a run are in order of ending: interrupted, what waits ends before what is under way."""
    source = saved(tmp_path, turn(3, None), turn(2, None), turn(1, 5))
    rows = load_ledger(source).rows
    assert [(row.id, row.arrival_ns, row.think_ns) for row in rows] == [
        ("R1", 0, None),
        ("R2", 6, 6),
        ("R3", 12, 6),
    ]


def test_a_replay_leaves_out_turns_that_never_came(tmp_path: Path) -> None:
    """A turn that came is replayed at the time that was measured."""
    ledger = load_ledger(saved(tmp_path, turn(3, None), turn(1, 5), turn(2, 30)), sessions="replay")
    assert [(row.id, row.arrival_ns) for row in ledger.rows] == [("R1", 0), ("R2", 25)]
    assert "1 row left out: no time" in ledger.notes


def test_a_session_that_never_began_is_left_out(tmp_path: Path) -> None:
    """In a closed loop its first turn has no time either."""
    first = msgspec.structs.replace(turn(1, None), id="R0", session="t")
    ledger = load_ledger(
        saved(tmp_path, first, msgspec.structs.replace(turn(2, None), session="t"), turn(1, 5))
    )
    assert [row.id for row in ledger.rows] == ["R1"]
    assert "2 rows left out: no time" in ledger.notes


@pytest.mark.parametrize(
    "change", [{"arrival_ns": -1}, {"arrival_ns": "5"}, {"think_ns": 0.5}, {"think_ns": 10**30}]
)
def test_a_time_of_a_run_that_is_none_is_named_by_line_and_field(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """Also in a last line without its end, which is then no half row."""
    record = {**json.loads(encode(turn(2, 5))), **change}
    (tmp_path / "requests.jsonl").write_bytes(encode(turn(1, 1)) + b"\n" + json.dumps(record).encode())
    with pytest.raises(InputError, match=f"line 2: {next(iter(change))} is "):
        load_ledger(str(tmp_path))


# --- missing values


@pytest.mark.parametrize("missing", [None, "", "  "])
def test_a_missing_time_is_left_out_in_every_format(missing: str | None) -> None:
    """Null, or nothing but blanks; in whichever order the rows are."""
    lengths = {"input_length": 5, "output_length": 1}
    calls = [{"t": missing, "type": "n", "in": 5, "out": 1}, {"t": 2, "type": "n", "in": 5, "out": 1}]
    agent = {"t": missing, "requests": calls[1:], "agent_id": "b"}
    usage = {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 1}
    spans = [
        {"start_time": missing, "attributes": usage},
        {"startTimeUnixNano": missing, "attributes": usage},
        {"startTimeUnixNano": missing, "start_time": "2024-01-01T00:00:00Z", "attributes": usage},
    ]
    for text, left_out in (
        (jsonl({"timestamp": missing, **lengths}, {"timestamp": 5, **lengths}), 1),
        (jsonl({"timestamp": 5, **lengths}, {"timestamp": missing, **lengths}), 1),
        (
            jsonl({"chat_id": 1, "timestamp": missing, **lengths}, {"chat_id": 2, "timestamp": 5, **lengths}),
            1,
        ),
        (json.dumps({"id": "a", "block_size": 64, "requests": calls}), 1),
        (json.dumps({"spans": spans}), 2),
    ):
        rows, skipped = read(text)
        assert len(rows) == 1
        assert [record.reason for record in skipped] == [NO_TIME] * left_out
    rows, skipped = read(json.dumps({"id": "a", "block_size": 64, "requests": [*calls, agent]}))
    assert [row.session for row in rows] == ["a", "a/b"]  # whose own times count from the session's begin


def test_a_file_of_lengths_may_begin_with_many_rows(tmp_path: Path) -> None:
    """A file without any time is not one that lost some."""
    rows, skipped = read(jsonl(*[{"input_length": 5, "output_length": 1}] * 1_500))
    assert (len(rows), skipped) == (1_500, [])


def test_a_message_without_a_text_is_no_reason_to_refuse_a_file(tmp_path: Path) -> None:
    """A turn whose answer is null has no output, and what follows has what was said."""
    said = ["able", None, "about", "above across"]
    talk = [{"from": "human" if i % 2 == 0 else "gpt", "value": text} for i, text in enumerate(said)]
    path = tmp_path / "talk.json"
    path.write_text(
        json.dumps(
            [
                {"id": "a", "conversations": talk},
                {"id": "b", "conversations": None},
                {"id": "c", "conversations": [{"from": None, "value": None}]},
            ]
        )
    )
    ledger = load_ledger(str(path), arrival="poisson", request_rate=Fraction(1))
    assert [(row.prompt_tokens, row.output_tokens) for row in ledger.rows] == [(2, 2)]
    assert "1 row left out: no output tokens" in ledger.notes
    assert "2 rows left out: no human message with an answer" in ledger.notes


def test_blanks_are_no_prompt() -> None:
    attributes = {
        "gen_ai.input.messages": json.dumps([{"role": "user", "content": "  "}]),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 1,
    }
    (row,) = rows_of(
        json.dumps({"spans": [{"start_time": "2024-01-01T00:00:00Z", "attributes": attributes}]})
    )
    assert (row.prompt, row.prompt_tokens) == (None, 7)


def test_a_binary_file_has_no_columns_to_name(tmp_path: Path) -> None:
    assert "--columns" not in refusal(b"\x1f\x8b\x08\x00\x00")
    assert "--columns" in refusal("when,in,out\n1,2,3\n")


# --- JSON over many lines


def documents(data: bytes) -> list[tuple[int, bytes]]:
    return list(raw_documents(io.BufferedReader(io.BytesIO(data)), "trace"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": "}]\\"{"}\n{"b": [1, {}]}', [(1, b'{"a": "}]\\"{"}'), (2, b'{"b": [1, {}]}')]),
        (b'\xef\xbb\xbf\r\n [\r\n{"a":1}\r\n, {\r\n}]', [(3, b'{"a":1}'), (4, b"{\r\n}")]),
        (b"{}{}", [(1, b"{}"), (1, b"{}")]),
        (b"[]", []),
        (b"[[1], {}]", [(1, b"[1]"), (1, b"{}")]),
    ],
)
def test_objects_are_cut_out_whole(data: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert documents(data) == expected


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b'{"a": 1', "line 1: not JSON: the file ends within this value"),
        (b'{"a": 1}\n[{"b": "', "line 2: not JSON: the file ends within this value"),
        (b'{}\n"text"', "line 2: not"),
        (b"{}\n\nhello\n", "line 3: not a JSON object: 'hello'"),
        (b"{}]", "line 1: not JSON: ']' closes nothing"),
    ],
)
def test_what_is_no_object_is_named_by_line(data: bytes, fault: str) -> None:
    with pytest.raises(InputError) as caught:
        documents(data)
    assert fault in str(caught.value)


def test_objects_may_be_longer_than_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the reads fall: within a string, within its escapes, between objects."""
    record = json.dumps({"text": 'a"\\\n{' * 7, "list": [[1, 2], {"x": "é"}]}, ensure_ascii=False).encode()
    data = b"[" + b",\n".join([record] * 5) + b"]"
    for size in (1, 2, 3, 5, 17, 64):
        monkeypatch.setattr("ledgers.formats.documents.CHUNK_BYTES", size)
        assert documents(data) == [(line, record) for line in range(1, 6)]


TALK = {"conversations": [{"from": "human", "value": "x" * 30_000}, {"from": "gpt", "value": "able"}]}


@pytest.mark.parametrize(
    ("trace_format", "begin", "line", "end"),
    [
        ("sharegpt", "[\n", json.dumps(TALK, indent=2) + ",\n", json.dumps(TALK) + "]"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens,Note\n", f"5,472,18,{'x' * 4_000}\n", ""),
        (
            "weka",
            "",
            json.dumps({**WEKA, "requests": [call(0, hash_ids=[1, 2], output_types=["x" * 20_000])]}) + "\n",
            "",
        ),
    ],
    ids=["sharegpt", "burstgpt", "weka"],
)
def test_fifty_megabytes_are_read_in_constant_memory(
    trace_format: str, begin: str, line: str, end: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    many = 50_000_000 // len(line)
    with path.open("w") as file:
        file.write(begin)
        file.writelines(line for _ in range(many))
        file.write(end)
    tracemalloc.start()
    try:
        with io.BufferedReader(io.FileIO(path), 32_768) as raw:
            count = sum(1 for _ in FORMATS[trace_format].read(raw, "trace"))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == many + bool(end)
    assert peak_bytes < 4_000_000
