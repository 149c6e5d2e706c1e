"""Class queues: the rules of docs/class-queues.md, against a second reading of them and by themselves."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgers.errors import InputError
from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.traffic import Traffic, TrafficClass, load_traffic, traffic_toml
from mock_server.policies import make_scheduler
from mock_server.simulate import simulate
from tests.plain_classes import Plain, Request, Setting, most_ticks

PAGE = Path(__file__).parent.parent / "docs" / "class-queues.md"
NS = 10**9
NAMES = ("a", "b", "*")

classes_of_files = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        TrafficClass,
        max_batch=st.none() | st.integers(1, 4),
        max_wait_s=st.sampled_from([None, 0.0, 0.13, 0.2, 0.5]),
        reserved_slots=st.integers(0, 2),
        priority=st.integers(-3, 3),
    ),
)
arrivals = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b", "c", "*"]),
        st.integers(0, 60_000_000) | st.integers(0, 400_000_000),  # ns after the one before
        st.integers(1, 40),
        st.integers(1, 8),
        st.none() | st.integers(0, 25),  # cancelled so many ticks after it was received
    ),
    max_size=25,
)


@st.composite
def setups(draw: st.DrawFn) -> SchedulerSettings:
    """Any settings that are allowed."""
    traffic = Traffic(draw(st.sampled_from([0.01, 0.1, 0.25, 1.0])), draw(classes_of_files))
    reserved = sum(rules.reserved_slots for rules in traffic.every_class().values())
    return SchedulerSettings(
        policy="classes",
        max_batch=draw(st.integers(1, 4)),
        max_wait_ns=draw(st.sampled_from([0, 150_000_000, 400_000_000])),
        hardware=Hardware(
            prefill_tokens_per_tick=draw(st.integers(4, 30)),
            decode_slots=draw(st.integers(reserved + 1, reserved + 2)),
            kv_budget_tokens=draw(st.integers(15, 120)),
        ),
        max_queue=draw(st.none() | st.integers(1, 6)),
        max_model_len=draw(st.none() | st.integers(10, 50)),
        traffic=traffic,
    )


Simulated = tuple[dict[str, RequestRow], list[TickRow]]


def simulated(
    setup: SchedulerSettings, requests: list[RequestRow], cancels: dict[str, int] | None = None
) -> Simulated:
    ticks: list[TickRow] = []
    rows = {
        row.id: row
        for row in simulate(make_scheduler(setup), requests, cancels=cancels, on_tick=ticks.append)
    }
    return rows, ticks


def plainly(setup: SchedulerSettings, requests: list[RequestRow], cancels: dict[str, int]) -> Plain:
    """The same for the second reading, all defaults filled in here."""
    given_classes = {name: (rules, i) for i, (name, rules) in enumerate(setup.traffic.classes.items())}
    names = [*given_classes, *([] if "*" in given_classes else ["*"])]
    classes: dict[str, dict[str, Any]] = {}
    for name in names:
        rules = given_classes[name][0] if name in given_classes else TrafficClass()
        wait_s = (
            Fraction(setup.max_wait_ns, NS) if rules.max_wait_s is None else Fraction(str(rules.max_wait_s))
        )
        classes[name] = {
            "max_batch": setup.max_batch if rules.max_batch is None else rules.max_batch,
            "max_wait": wait_s,
            "reserved_slots": rules.reserved_slots,
            "priority": rules.priority,
        }
    setting = Setting(
        tick=Fraction(1, 10),
        prefill_tokens_per_tick=setup.hardware.prefill_tokens_per_tick,
        decode_slots=setup.hardware.decode_slots,
        kv_budget=setup.hardware.kv_budget_tokens,
        ageing=Fraction(str(setup.traffic.ageing_s)),
        classes=classes,
        max_queue=setup.max_queue,
        max_model_len=setup.max_model_len,
    )
    coming = [
        Request(
            row.id,
            row.class_,
            Fraction(row.arrival_ns or 0, NS),
            row.prompt_tokens,
            row.output_tokens,
            cancels.get(row.id),
        )
        for row in requests
    ]
    plain = Plain(setting, coming)
    plain.run(most_ticks(setting, coming))
    return plain


def tick_values(tick: TickRow) -> tuple[int, ...]:
    return (
        tick.tick,
        tick.queue,
        tick.prefill,
        tick.ready,
        tick.emitted,
        tick.kv_reserved,
        tick.kv_cached,
    )


@settings(max_examples=400, deadline=None)
@given(setup=setups(), came=arrivals)
def test_the_scheduler_and_a_plain_reading_of_the_rules_agree_tick_for_tick(
    setup: SchedulerSettings, came: list[tuple[str | None, int, int, int, int | None]]
) -> None:
    """Every tick of every request, every rejection and every tick row, with limits and cancellations."""
    requests: list[RequestRow] = []
    cancels: dict[str, int] = {}
    at_ns = 0
    for number, (class_, gap_ns, prompt, output, leaves_after) in enumerate(came):
        at_ns += gap_ns if number else 0
        row = RequestRow(
            id=f"q{number}", class_=class_, prompt_tokens=prompt, output_tokens=output, arrival_ns=at_ns
        )
        requests.append(row)
        if leaves_after is not None:
            cancels[row.id] = -(-at_ns // 100_000_000) + leaves_after
    rows, ticks = simulated(setup, requests, cancels)
    plain = plainly(setup, requests, cancels)
    assert set(rows) == {request.id for request in plain.requests}
    for request in plain.requests:
        row = rows[request.id]
        assert row.ticks is not None
        found = (
            row.ticks.received,
            row.ticks.prefill_start,
            row.ticks.prefill_end,
            row.ticks.first_token,
            row.ticks.last_token,
        )
        expected = (
            request.received,
            request.prefill_start,
            request.prefill_end,
            request.first_token,
            request.last_token,
        )
        assert found == expected, request.id
        assert request.state == (row.error if row.outcome == "rejected" else row.outcome)
    busy = [values for values in plain.rows if any(values[1:5])]
    assert [tick_values(tick) for tick in ticks if not tick.idle] == busy


@settings(max_examples=100, deadline=None)
@given(setup=setups(), came=arrivals)
def test_without_a_file_it_does_what_continuous_does(
    setup: SchedulerSettings, came: list[tuple[str | None, int, int, int, int | None]]
) -> None:
    """One class for all: the same ticks for every request, whatever their classes are called."""
    requests = [
        RequestRow(
            id=str(i), class_=class_, prompt_tokens=prompt, output_tokens=output, arrival_ns=i * 70_000_000
        )
        for i, (class_, _, prompt, output, _) in enumerate(came)
    ]
    answers = []
    for policy in ("classes", "continuous"):
        alike = SchedulerSettings(policy, setup.max_batch, setup.max_wait_ns, hardware=setup.hardware)
        rows, ticks = simulated(alike, requests)
        answers.append(({id: row.ticks for id, row in rows.items()}, ticks))
    assert answers[0] == answers[1]


def cells(heading: str) -> list[list[str]]:
    """The rows of the table on the page whose first heading this is."""
    lines = PAGE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


EXAMPLE = SchedulerSettings(
    policy="classes",
    hardware=Hardware(decode_slots=2),
    traffic=Traffic(
        0.1,
        {
            "chat": TrafficClass(max_batch=1, max_wait_s=0, reserved_slots=1, priority=2),
            "bulk": TrafficClass(max_batch=2, max_wait_s=0.2),
        },
    ),
)


def test_the_worked_example_on_the_page_is_what_happens() -> None:
    """The page's requests give the page's ticks: arrivals, who emits, who starts, queue and KV reserve."""
    requests = [
        RequestRow(
            id=id,
            class_=class_,
            arrival_ns=round(float(at) * NS),
            prompt_tokens=int(prompt),
            output_tokens=int(output),
        )
        for ids, class_, at, prompt, output in cells("request")
        for id in re.findall(r"\w+", ids)
    ]
    ticks: list[TickRow] = []
    list(simulate(make_scheduler(EXAMPLE), requests, on_tick=ticks.append, record_events=True))
    table = cells("tick")
    assert len(table) == len(ticks) == 7
    for (tick, arrived, chats, other, prefill, queue, reserved), row in zip(table, ticks, strict=True):
        events = row.events or []
        assert (int(tick), int(queue), int(reserved)) == (row.tick, row.queue, row.kv_reserved)
        assert arrived.split() == [id for kind, id in events if kind == "arrive"]
        assert re.findall(r"[bc]\d", chats + other) == [id for kind, id in events if kind == "token"]
        last = [cell[:2] for cell in (chats, other) if "last" in cell]
        assert last == [id for kind, id in events if kind == "finish"]
        assert prefill.split() == [id for kind, id in events if kind == "prefill_start"]


def flood(class_: str, count: int, every_ns: int, output: int = 20) -> list[RequestRow]:
    return [
        RequestRow(
            id=f"{class_}{i}", class_=class_, prompt_tokens=4, output_tokens=output, arrival_ns=i * every_ns
        )
        for i in range(count)
    ]


def test_a_reserved_slot_is_there_whatever_else_is_going_on() -> None:
    """Under a flood of the other class, a request emits a token in every tick once it is prefilled."""
    traffic = Traffic(1.0, {"chat": TrafficClass(reserved_slots=1, max_batch=1, priority=1)})
    hardware = Hardware(kv_budget_tokens=10_000)
    setup = SchedulerSettings(policy="classes", hardware=hardware, traffic=traffic)
    chat = RequestRow(id="x", class_="chat", prompt_tokens=4, output_tokens=10, arrival_ns=3 * NS)
    rows, _ = simulated(setup, [*flood("bulk", 60, NS // 20), chat])
    ticks = rows["x"].ticks
    assert ticks is not None
    assert ticks.prefill_end is not None
    assert (ticks.first_token, ticks.last_token) == (ticks.prefill_end, ticks.prefill_end + 9)


def test_priority_gives_a_head_start_and_ageing_ends_it() -> None:
    """One low request among an endless flood of high ones ends, and sooner where ageing is faster."""
    ends = []
    for ageing_s in (0.2, 1.0):
        traffic = Traffic(ageing_s, {"high": TrafficClass(priority=3), "low": TrafficClass()})
        setup = SchedulerSettings(policy="classes", traffic=traffic)
        high = flood("high", 300, NS // 10, output=4)
        low = RequestRow(id="x", class_="low", prompt_tokens=4, output_tokens=4, arrival_ns=NS)
        coming = sorted([*high, low], key=lambda row: row.arrival_ns or 0)
        ticks = simulated(setup, coming)[0]["x"].ticks
        assert ticks is not None
        assert ticks.last_token is not None
        ends.append(ticks.last_token)
    assert ends[0] < ends[1] < 150  # the flood lasts for 300 ticks and more


FILE = """
ageing_s = 0.5
[classes.chat]
priority = 2
max_batch = 1
max_wait_s = 0
reserved_slots = 1
[classes."*"]
max_batch = 8
"""


def test_a_file_of_classes_is_read_and_written_again(tmp_path: Path) -> None:
    """What is not given stays what the scheduler has for all; names may be anything."""
    path = tmp_path / "classes.toml"
    path.write_text(FILE)
    traffic = load_traffic(path)
    chat = TrafficClass(max_batch=1, max_wait_s=0, reserved_slots=1, priority=2)
    assert traffic == Traffic(0.5, {"chat": chat, "*": TrafficClass(max_batch=8)})
    odd = Traffic(1e-7, {'a "b"\\ü': TrafficClass(max_wait_s=2.5), "x.y": chat})
    path.write_text(traffic_toml(odd), encoding="utf-8")
    assert load_traffic(path) == odd


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[classes.a]\nslots = 1", "slots"),
        ("[class.a]\npriority = 1", "class"),
        ("[classes.a]\nmax_batch = 0", "max_batch"),
        ("[classes.a]\nmax_wait_s = -1", "max_wait_s"),
        ("[classes.a]\npriority = 0.5", "priority"),
        ("ageing_s = 0", "ageing_s"),
        ("ageing_s = nan", "ageing_s"),
        ("[classes.a", "end of document"),
        ("\udcff", "utf-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    """With the file and the key."""
    path = tmp_path / "classes.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        load_traffic(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="No such file"):
        load_traffic(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("slots", "allowed"), [((1, 1), True), ((1, 2), False), ((3, 1), False), ((0, 0), True)]
)
def test_slots_are_reserved_only_where_nobody_is_left_without(slots: tuple[int, int], allowed: bool) -> None:
    """Three slots: all of them reserved would leave `*` none, and it could wait for ever."""
    classes = {name: TrafficClass(reserved_slots=n) for name, n in zip("ab", slots, strict=True)}

    def settle(classes: dict[str, TrafficClass]) -> SchedulerSettings:
        return SchedulerSettings(policy="classes", traffic=Traffic(classes=classes))

    if allowed:
        settle(classes)
    else:
        with pytest.raises(InputError, match="slots are reserved"):
            settle(classes)
    settle({"a": TrafficClass(reserved_slots=2), "*": TrafficClass(reserved_slots=1)})
