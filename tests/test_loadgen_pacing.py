"""Pacing: nothing early, nothing skipped, nothing added up; and an alarm that rings on time."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.alarm import Alarm
from loadgen.pacing import Places, Schedule

MS = 1_000_000
arrivals = st.lists(st.integers(0, 10_000), min_size=1, max_size=40).map(sorted)
steps = st.lists(st.integers(0, 3_000), min_size=1, max_size=40)


@given(arrivals, steps)
def test_every_request_is_due_once_in_order_and_never_early(at: list[int], waits: list[int]) -> None:
    """However late the caller looks, each request comes out once, and not before its time."""
    schedule = Schedule(at)
    schedule.start(500)
    now, taken = 0, []
    for wait in [*waits, 20_000]:
        now += wait
        while (index := schedule.take_due(now)) is not None:
            assert schedule.at_ns(index) <= now
            taken.append(index)
        assert schedule.remaining == sum(500 + a > now for a in at)
    assert taken == list(range(len(at)))


@given(arrivals)
def test_waking_when_told_sends_exactly_on_time(at: list[int]) -> None:
    """A driver that wakes at each `wake_ns` and is never late sends each request at its very time."""
    schedule = Schedule(at, connect_ahead_ns=70)
    schedule.start(1_000)
    now, sent = 0, []
    while True:
        while (index := schedule.take_due(now)) is not None:
            sent.append((index, now))
        schedule.unsent_soon(now)
        wake = schedule.wake_ns()
        if wake is None:
            break
        assert wake > now
        now = wake
    assert sent == [(index, 1_000 + a) for index, a in enumerate(at)]


def test_late_requests_do_not_move_those_after_them() -> None:
    """A stall of 25 ms over arrivals every 10 ms makes two late; the fourth is on time again."""
    schedule = Schedule([0, 10, 20, 30])
    assert schedule.take_due(0) == 0
    assert [schedule.take_due(25), schedule.take_due(25), schedule.take_due(25)] == [1, 2, None]
    assert schedule.unsent_soon(25) == 1
    assert schedule.wake_ns() == 30


def test_connections_are_wanted_a_little_ahead() -> None:
    """Only requests within the look-ahead want one, so that a long ledger reuses what it has."""
    schedule = Schedule([0, 10, 20, 500], connect_ahead_ns=50)
    assert schedule.unsent_soon(0) == 3
    assert schedule.take_due(0) == 0
    assert schedule.unsent_soon(0) == 2


def test_bodies_are_prepared_within_time_and_bytes() -> None:
    """Neither a long ledger nor long prompts fill the memory."""
    schedule = Schedule([0, 100, 200, 5_000], prepare_ahead_ns=1_000, prepare_bytes=50)
    assert [schedule.take_to_prepare(0, 0), schedule.take_to_prepare(0, 49)] == [0, 1]
    assert schedule.take_to_prepare(0, 50) is None
    assert schedule.take_to_prepare(0, 10) == 2
    assert schedule.take_to_prepare(0, 0) is None
    assert schedule.prepare_ns() == 4_000
    assert schedule.take_to_prepare(4_000, 0) == 3
    assert schedule.prepare_ns() is None


def test_arrivals_that_decrease_are_refused() -> None:
    """An unsorted ledger would make later requests late without a word."""
    with pytest.raises(ValueError, match="decrease"):
        Schedule([5, 4])


async def test_the_alarm_rings_at_absolute_times_and_never_early() -> None:
    """Twenty deadlines 3.3 ms apart: none early, and half of them within a millisecond."""
    rung = asyncio.Event()
    alarm = Alarm(asyncio.get_running_loop(), rung.set)
    start, lags = time.monotonic_ns(), []
    for number in range(1, 21):
        due = start + number * 3_300_000
        alarm.set(due)
        await rung.wait()
        lags.append(time.monotonic_ns() - due)
        rung.clear()
    alarm.close()
    assert min(lags) >= 0
    assert sorted(lags)[10] < 1 * MS


async def test_an_alarm_for_the_past_rings_at_once_and_a_new_time_replaces_the_old() -> None:
    """A late driver is not left asleep, and one set for later does not ring for the earlier time."""
    rung: list[int] = []
    alarm = Alarm(asyncio.get_running_loop(), lambda: rung.append(time.monotonic_ns()))
    alarm.set(0)
    await asyncio.sleep(0.01)
    assert len(rung) == 1
    now = time.monotonic_ns()
    alarm.set(now + 5 * MS)
    alarm.set(now + 30 * MS)
    await asyncio.sleep(0.05)
    alarm.close()
    assert len(rung) == 2
    assert rung[1] >= now + 30 * MS


def test_places_under_a_cap_are_given_in_the_order_in_which_they_came_free() -> None:
    """Eight arrivals 100 ms apart, one place, 500 ms of service: the k-th may go at k * 500 ms."""
    places = Places(1)
    due = []
    for k in range(8):
        due.append(places.take(k * 100))
        assert places.full
        places.give_back((due[-1] or 0) + 500)
    assert due == [0, 500, 1000, 1500, 2000, 2500, 3000, 3500]


def test_a_place_that_was_free_before_makes_nobody_wait() -> None:
    """Due is then the arrival itself."""
    places = Places(2)
    assert (places.left, places.take(0), places.left, places.take(10)) == (2, 0, 1, 10)
    places.give_back(50)
    assert (places.full, places.take(70)) == (False, 70)


def test_without_a_cap_there_is_always_a_place() -> None:
    """And nothing to say about when it came free."""
    places = Places()
    assert [places.take(k) for k in range(1000)] == [None] * 1000
    assert (places.left, places.full) == (None, False)


def test_a_closed_schedule_sends_nothing_more() -> None:
    """What is left is told once."""
    schedule = Schedule([0, 10, 20])
    schedule.start(100)
    assert schedule.take_due(100) == 0
    assert schedule.close() == 2
    assert (schedule.take_due(1000), schedule.remaining, schedule.close()) == (None, 0, 0)
    assert (schedule.wake_ns(), schedule.prepare_ns(), schedule.unsent_soon(1000)) == (None, None, 0)
