"""A run: every request leaves when it is due, whatever became of those before it.

In an open loop a request is due at its intended time; under a cap, when it has a place as well. A closed loop
has no times of its own: a request is due when it has a place. A turn that waits for the one before it has its
time from the end of that. Owns the clock of a run. What to do when comes
from pure parts (schedule, places, patience), what happened goes to the run log.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from textwrap import wrap
from typing import Any

import msgspec

from ledgers.alarm import Alarm
from ledgers.machine import few_collections
from ledgers.printable import printable
from ledgers.rows import Outcome, RequestRow
from ledgers.units import NS_PER_MS, NS_PER_S
from loadgen.alone import reached
from loadgen.health import Health
from loadgen.outgoing import Outgoing
from loadgen.pacing import FAR_NS, Places, Schedule
from loadgen.patience import Limit, Patience, Retries
from loadgen.prompts import RequestEncoder
from loadgen.recorder import Recorder, unsent
from loadgen.requests import Requests
from loadgen.run_log import Log, uncounted
from loadgen.transport import Exchange, Transport
from loadgen.turns import Later, Turns

_OPEN_WITHIN_S = 2.0  # t0 waits no longer for connections: those that are late are the run's to measure
_SLICE_NS = 2 * NS_PER_MS  # fifty sends and more; what comes meanwhile is dated by the kernel
_HEARTBEAT_NS = 20 * NS_PER_MS
_MOST_AT_ONCE = 16  # are sent before the time is looked at: half a millisecond


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """By what a run is paced and ended.

    `most_in_flight`: the cap; None for none. `closed`: requests have no times, only a place counts.
    `send_for_ns`: nothing is sent that long after t0. `cut_after_ns` after the last arrival, what is still in
    flight is cut; None waits for all. While a turn waits nobody knows the last arrival: it is taken to be the
    last known one if nothing has come for so long of any answer that is waited for. `connections` are open
    before t0, at least.
    """

    most_in_flight: int | None = None
    closed: bool = False
    send_for_ns: int | None = None
    cut_after_ns: int | None = None
    connections: int = 0
    patience: Patience = Patience()
    retries: Retries = Retries()


class _Flight(msgspec.Struct):
    """A request on its way: its index, since when, when it was due, and what ends it if nothing else does."""

    index: int
    started_ns: int
    due_ns: int
    later: Later | None = None
    cancels: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def attempt(self) -> int:
        return 0 if self.later is None else self.later.attempt


class Replay:
    """One run of planned requests against a transport."""

    def __init__(
        self,
        requests: Requests,
        schedule: Schedule,
        encoder: RequestEncoder,
        log: Log,
        rules: Rules,
        *,
        record_text: bool = False,
        count_text: bool = False,
        scrub: Callable[[str], str] = str,
        show: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`record_text` keeps what was generated in the rows; `count_text` has it counted where need be."""
        self.t0_ns = 0
        self.interrupted = False
        self.left_out = 0  # of the ledger, when the time for sending was over
        self._requests = requests
        self._schedule = schedule
        self._encoder = encoder
        self._log = log
        self._rules = rules
        self._places = Places(rules.most_in_flight)
        self._record_text = record_text
        self._count_text = count_text
        self._scrub = scrub
        self._show = show
        self._transport: Transport | None = None
        self._turns = Turns(requests, encoder)
        self._outgoing = Outgoing(
            requests, schedule, encoder, self._turns, self._recorder, rules.most_in_flight
        )
        self._health = Health()
        self._in_flight: dict[Recorder, _Flight] = {}
        self._unbooked: list[tuple[Recorder, _Flight]] = []  # just sent
        self._last_send_ns = 0
        self._stop_ns = FAR_NS
        self._stopped = False  # nothing more will be sent
        self._over = asyncio.Event()
        self._crash: BaseException | None = None

    async def run(self, transport: Transport, agree: Callable[[], Awaitable[int]]) -> None:
        """Replay the ledger from the t0 on that `agree` says when all is ready for it (monotonic ns).

        Raises what went wrong in a callback, such as InputError for a full disk.
        """
        self._transport = transport
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._crashed)
        self._send_alarm = Alarm(loop, self._on_time)
        self._stop_alarm = Alarm(loop, self._time_is_over)
        self._cut_alarm = Alarm(loop, self._tail_is_over)
        self._heart = Alarm(loop, self._beat)
        await self._make_ready(transport)
        with few_collections():
            self._start(await agree())
            preparing = [asyncio.create_task(work) for work in self._outgoing.preparing()]
            for task in preparing:
                task.add_done_callback(self._task_ended)
            try:
                await self._over.wait()
            finally:
                for task in preparing:
                    task.cancel()
                for alarm in (self._send_alarm, self._stop_alarm, self._cut_alarm, self._heart):
                    alarm.close()
        if self._crash is not None:
            raise self._crash
        self._sample(max(time.monotonic_ns(), self.t0_ns))  # an interrupt can come before t0

    def interrupt(self) -> None:
        """First: send no more, let what is in flight end. Second: cut it."""
        if self.interrupted:
            self._cut("cancelled", "interrupted")
            return
        self.interrupted = True
        self._not_sent()
        if self._in_flight:
            self._show(f"interrupted: waiting for {len(self._in_flight)} in flight; once more cuts them off")
        self._set_cut()
        self._check_over()

    # Before t0

    async def _make_ready(self, transport: Transport) -> None:
        """Encode the first bodies and open the first connections: t0 must not wait for either."""
        while not self._stopped and await self._outgoing.prepare_one():
            pass
        transport.open_ahead(max(self._wanted_soon(0), self._rules.connections))
        until = time.monotonic() + _OPEN_WITHIN_S
        while transport.opening and not self._stopped and time.monotonic() < until:
            await asyncio.sleep(0.001)

    def _start(self, t0_ns: int) -> None:
        self.t0_ns = self._last_send_ns = t0_ns
        self._schedule.start(t0_ns)
        self._health.start(t0_ns)
        self._beat_due_ns = self.t0_ns
        self._second_due_ns = self.t0_ns + NS_PER_S
        self._heart.set(self._beat_due_ns)
        if self._rules.send_for_ns is not None:
            self._stop_ns = self.t0_ns + self._rules.send_for_ns
            self._stop_alarm.set(self._stop_ns)
        if not self._rules.closed:
            self._set_cut()
        self._on_time()

    def _set_cut(self) -> None:
        """The tail begins with the last arrival that is known; in a closed loop with the last send."""
        if self._rules.cut_after_ns is not None:
            last_ns = self._last_send_ns if self._rules.closed else self._schedule.last_ns()
            self._cut_alarm.set(max(last_ns, self._turns.known_ns) + self._rules.cut_after_ns)

    # Sending

    def _on_time(self) -> None:
        """Send what is due; after a slice of time let the loop read before going on."""
        assert self._transport is not None
        now = time.monotonic_ns()
        until = now + _SLICE_NS
        more = True
        while more and now <= until:
            requests = self._due(now)
            self._transport.send(*requests)
            more = len(requests) == _MOST_AT_ONCE
            now = time.monotonic_ns()
        self._book()
        if more:
            asyncio.get_running_loop().call_soon(self._on_time)
        elif not self._stopped:
            self._look_ahead(now)

    def _due(self, now_ns: int) -> list[tuple[Recorder, bytes]]:
        """What is to be sent now, each in its place; the rest next time, if there is much."""
        requests: list[tuple[Recorder, bytes]] = []
        if now_ns < self._stop_ns:
            while len(requests) < _MOST_AT_ONCE and not self._stopped and not self._places.full:
                request = self._next_due(now_ns)
                if request is None:
                    break
                requests.append(request)
        return requests

    def _next_due(self, now_ns: int) -> tuple[Recorder, bytes] | None:
        """Of the requests that are due the one that has been for longest."""
        found = self._outgoing.take_due(now_ns, closed=self._rules.closed)
        if found is None:
            return None
        index, recorder, request, later = found
        return self._placed(index, recorder, later), request

    def _recorder(self, row: RequestRow) -> Recorder:
        return Recorder(
            row,
            self._encoder.dialect,
            choices=self._encoder.choices,
            record_text=self._record_text or self._count_text,
            counts=self._health.reads,
        )

    def _placed(self, index: int, recorder: Recorder, later: Later | None = None) -> Recorder:
        """Take a place for a request that goes now."""
        wanted_ns = self._schedule.at_ns(index) if later is None else later.due_ns
        due_ns = self._places.take(wanted_ns)
        if due_ns is None and later is not None and not later.is_turn:
            due_ns = wanted_ns
        recorder.due_ns = due_ns
        flight = _Flight(index, time.monotonic_ns(), wanted_ns if due_ns is None else due_ns, later)
        self._unbooked.append((recorder, flight))
        return recorder

    def _book(self) -> None:
        """What is to be done for requests that were sent, once none waits to be."""
        for recorder, flight in self._unbooked:
            self._in_flight[recorder] = flight
            self._last_send_ns = flight.started_ns
            self._health.sending(flight.due_ns, flight.started_ns, again=flight.attempt > 0)
            if flight.attempt == 0:
                self._turns.awaited(flight.index)
            self._watch(recorder)
        self._unbooked.clear()

    def _look_ahead(self, now_ns: int) -> None:
        """Open connections for what comes soon, and wake when the next thing is to be done."""
        assert self._transport is not None
        if not self._schedule.remaining:
            self._all_sent()
        self._outgoing.arm(now_ns)
        if self._places.full:
            return  # whoever ends wakes us
        self._transport.open_ahead(self._wanted_soon(now_ns))
        if (at_ns := self._outgoing.wake_ns()) is not None:
            self._send_alarm.set(at_ns)

    def _wanted_soon(self, now_ns: int) -> int:
        soon = self._schedule.unsent_soon(now_ns)
        return soon if self._places.left is None else min(soon, self._places.left)

    def _all_sent(self) -> None:
        """What has its own time is through; turns that wait, and further attempts, may still come."""
        if self._rules.closed:
            self._set_cut()
        self._check_over()

    def _stop_sending(self) -> None:
        """Nothing leaves any more, nor what still waits for its connection."""
        self._stopped = True
        self._outgoing.later.clear()
        for recorder in list(self._in_flight):
            if recorder.phase == "connect":
                why = "still connecting when the sending was over"
                self._end(recorder, Limit(time.monotonic_ns(), "not_sent", why))

    # Ends

    def finished(self, exchange: Exchange) -> None:
        """An exchange's outcome is certain (the transport calls this)."""
        assert isinstance(exchange, Recorder)
        flight = self._in_flight.pop(exchange)
        if flight.timer is not None:
            flight.timer.cancel()
        was_full = self._places.full
        self._places.give_back(exchange.end_ns or time.monotonic_ns())
        self._write(exchange)
        if not self._stopped:
            if not self._retry(exchange, flight):
                self._go_on(exchange, flight.index)
            if was_full:
                asyncio.get_running_loop().call_soon(self._on_time)
        self._check_over()

    def _write(self, ended: Recorder) -> None:
        self._health.ended(sent=ended.outcome != "not_sent")
        if ended.outcome == "not_sent":
            self._log.add(unsent(ended.planned, ended.error))
            return
        row = ended.row(self.t0_ns, record_tokens=True, record_text=self._record_text, scrub=self._scrub)
        self._log.add(row, ended.whole_text() if self._count_text and uncounted(row) else None)

    def _go_on(self, ended: Recorder, index: int) -> None:
        """Let the turn go that waits for this one; if it did not complete, none of those behind is sent."""
        if not self._turns.one_behind(index):
            return
        if ended.outcome == "completed":
            end_ns = time.monotonic_ns() if ended.end_ns is None else ended.end_ns
            self._plan(self._turns.let_go(index, end_ns, None if self._rules.closed else self.t0_ns))
        else:
            self._add_rows(self._turns.lose(index, ended))
        if not self._rules.closed:
            self._set_cut()

    def _plan(self, later: Later) -> None:
        self._outgoing.plan(later)
        asyncio.get_running_loop().call_soon(self._on_time)

    def _add_rows(self, rows: Iterable[RequestRow]) -> None:
        for row in rows:
            self._log.add(row)

    def _retry(self, ended: Recorder, flight: _Flight) -> bool:
        """Plan the attempt that this client makes next; whether it makes one."""
        retries = self._rules.retries
        status = ended.http_status
        began = ended.last_token_ns is not None
        if not retries.wanted(flight.attempt, ended.outcome, status, began):
            return False
        wait_s = retries.wait_s(self._requests.number(flight.index), flight.attempt, ended.retry_after_s)
        due_ns = (ended.end_ns or time.monotonic_ns()) + round(wait_s * NS_PER_S)
        arrival_ns = ended.row(self.t0_ns).arrival_ns
        self._plan(Later(due_ns, flight.index, flight.attempt + 1, arrival_ns))
        return True

    def _watch(self, recorder: Recorder) -> None:
        """See to it that the request ends when the patience of its client does."""
        flight = self._in_flight.get(recorder)
        if flight is None:
            return
        patience = self._rules.patience
        flight.cancels = patience.cancels(self._requests.number(flight.index))
        limit = patience.limit(flight.started_ns, recorder.last_token_ns, flight.cancels)
        waits_s = [] if limit is None else [max(0, limit.at_ns - time.monotonic_ns()) / NS_PER_S]
        if patience.stall_s is not None:  # the next token, which moves this limit, may come at any time
            waits_s.append(patience.stall_s)
        if waits_s:
            # The loop's timers may fire a millisecond early; a request is never cut before its time.
            flight.timer = asyncio.get_running_loop().call_later(min(waits_s) + 0.001, self._check, recorder)

    def _check(self, recorder: Recorder) -> None:
        assert self._transport is not None
        flight = self._in_flight.get(recorder)
        if flight is not None and self._limit_of(recorder, flight) is not None:
            self._transport.catch_up()  # what has come counts
            flight = self._in_flight.get(recorder)
        if flight is None:
            return
        limit = self._limit_of(recorder, flight)
        if limit is None:
            self._watch(recorder)
        else:
            self._end(recorder, limit._replace(at_ns=time.monotonic_ns()))

    def _limit_of(self, recorder: Recorder, flight: _Flight) -> Limit | None:
        """The limit that a request has reached, as far as what came has been looked at."""
        limit = self._rules.patience.limit(flight.started_ns, recorder.last_token_ns, flight.cancels)
        return limit if limit is not None and limit.at_ns <= time.monotonic_ns() else None

    def _end_what_is_over(self, now_ns: int) -> None:
        """Some servers finish an answer and leave the stream open: nobody waits for an end mark for long."""
        for recorder in list(self._in_flight):
            if (end := reached(recorder, None, now_ns)) is not None:
                self._end(recorder, end)

    def _time_is_over(self) -> None:
        """The time for sending is over. What a closed loop has not begun with was never on offer."""
        if self._stopped:
            return
        if self._rules.closed:
            turns = len(self._outgoing.let_go()) + len(self._turns)
            self._turns.close()
            self.left_out = self._schedule.close() + turns
            self._stop_sending()
        else:
            self._not_sent()
        self._set_cut()
        self._check_over()

    def _tail_is_over(self) -> None:
        assert self._transport is not None
        self._transport.catch_up()  # what has come counts
        assert self._rules.cut_after_ns is not None
        until_ns = self._heard_ns() + self._rules.cut_after_ns
        if until_ns > time.monotonic_ns():
            self._cut_alarm.set(until_ns)
            return
        self._not_sent()
        self._cut("unfinished", "in flight when the tail ended")

    def _heard_ns(self) -> int:
        """When something came of an answer that a turn waits for; 0 if none is waited for."""
        # Under a closed loop's cap a turn that was let go waits for a place, which any answer may free.
        for_a_place = self._rules.closed and bool(self._outgoing.let_go())
        return max(
            (
                max(flight.started_ns, recorder.last_token_ns or 0)
                for recorder, flight in self._in_flight.items()
                if for_a_place or self._turns.one_behind(flight.index)
            ),
            default=0,
        )

    def _cut(self, outcome: Outcome, why: str) -> None:
        """End everything in flight now."""
        self._stop_sending()
        for recorder in list(self._in_flight):
            self._end(recorder, Limit(time.monotonic_ns(), outcome, why))
        self._check_over()

    def _end(self, recorder: Recorder, end: Limit) -> None:
        assert self._transport is not None
        self._transport.catch_up()  # what has come counts
        if recorder in self._in_flight:
            self._transport.forget(recorder)
            recorder.stop(end.outcome, end.at_ns, end.why)
            self.finished(recorder)

    def _not_sent(self) -> None:
        """What is left of the ledger gets its rows."""
        self._add_rows(map(unsent, self._requests[self._schedule.sent : len(self._schedule)]))
        self._schedule.close()
        for turn in self._outgoing.let_go():
            row = unsent(self._requests[turn.which])
            in_time = turn.due_ns < self._stop_ns  # else its arrival is none of this run
            self._log.add(msgspec.structs.replace(row, arrival_ns=turn.arrival_ns if in_time else None))
        self._add_rows(self._turns.close())
        self._stop_sending()

    def _check_over(self) -> None:
        more = not self._stopped and (self._schedule.remaining or self._outgoing.later)
        if not more and not self._in_flight:
            self._over.set()

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: end the run with the first such error instead of going on half blind."""
        error = context.get("exception") or RuntimeError(context["message"])
        self._crash = self._crash or error
        self._over.set()

    # Beside the sending

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._crash = self._crash or task.exception()
            self._over.set()

    def _beat(self) -> None:
        """Fifty times a second: how late is the loop? Once a second: housekeeping and a health sample."""
        assert self._transport is not None
        now = time.monotonic_ns()
        self._health.loop_lag(now - self._beat_due_ns)
        self._beat_due_ns += _HEARTBEAT_NS * (1 + max(0, now - self._beat_due_ns) // _HEARTBEAT_NS)
        self._heart.set(self._beat_due_ns)
        if now >= self._second_due_ns:
            self._second_due_ns += NS_PER_S * (1 + (now - self._second_due_ns) // NS_PER_S)
            self._health.loop_lag(self._transport.clock.take_max_read_lag())
            self._transport.housekeeping(now)
            if not self._transport.behind:
                self._end_what_is_over(self._transport.readiness.seen_ns)
            self._sample(now)

    def _sample(self, now_ns: int) -> None:
        asked = None
        if not self._rules.closed:
            let_go = sum(turn.due_ns <= now_ns for turn in self._outgoing.let_go())
            asked = self._schedule.due_by(now_ns) + self._turns.sent + let_go
        self._log.add_health(self._health.sample(now_ns, asked))


def to_stderr(line: str) -> None:
    lines = wrap(printable(line), 80, subsequent_indent="  ")
    print("\n".join(lines), file=sys.stderr, flush=True)
