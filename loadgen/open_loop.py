"""The open loop: every request leaves at its intended time, whatever became of those before it.

Owns the clock of a run. What to do when comes from the schedule, what happened goes to the run log.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ledgers.rows import Outcome, RequestRow
from ledgers.units import NS_PER_MS, NS_PER_S
from loadgen.alarm import Alarm
from loadgen.pacing import Schedule
from loadgen.prompts import RequestEncoder
from loadgen.recorder import Recorder
from loadgen.run_log import RunLog
from loadgen.transport import Exchange, Transport

_START_LEAD_NS = 20 * NS_PER_MS
_SLICE_NS = NS_PER_MS
_STEP_SLICE_NS = NS_PER_MS // 2
_HEARTBEAT_NS = 20 * NS_PER_MS
_PROGRESS_NS = 10 * NS_PER_S


class OpenLoop:
    """One run of a planned ledger against a transport."""

    def __init__(
        self,
        rows: Sequence[RequestRow],
        schedule: Schedule,
        encoder: RequestEncoder,
        log: RunLog,
        *,
        cut_after_ns: int | None = None,
        request_timeout_s: float | None = None,
        record_text: bool = False,
        show: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`cut_after_ns` after the last arrival, what is still in flight is cut; None waits for all."""
        self.t0_ns = 0
        self.t0_unix_ns = 0
        self.interrupted = False
        self._rows = rows
        self._schedule = schedule
        self._encoder = encoder
        self._log = log
        self._cut_after_ns = cut_after_ns
        self._request_timeout_s = request_timeout_s
        self._record_text = record_text
        self._show = show
        self._transport: Transport | None = None
        self._requests: dict[int, bytes] = {}  # encoded, not sent
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._in_flight: dict[Recorder, asyncio.TimerHandle | None] = {}
        self._stopped = False  # nothing more will be sent
        self._over = asyncio.Event()
        self._crash: BaseException | None = None

    async def run(self, transport: Transport, started: Callable[[], None]) -> None:
        """Replay the ledger; `started` is called when t0 is fixed and before the first send.

        Raises what went wrong in a callback, such as InputError for a full disk.
        """
        self._transport = transport
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._crashed)
        self._send_alarm = Alarm(loop, self._on_time)
        self._cut_alarm = Alarm(loop, lambda: self._cut("unfinished", "in flight when the tail ended"))
        self._heart = Alarm(loop, self._beat)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        await self._make_ready(transport)
        gc.collect()
        gc.freeze()  # a collection over everything made so far would stall the loop for milliseconds
        self._start(started)
        preparing = asyncio.create_task(self._prepare())
        preparing.add_done_callback(self._prepare_ended)
        try:
            await self._over.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
                signal.signal(
                    number, signal.SIG_IGN
                )  # what is left is to complete the files and to show them
            preparing.cancel()
            for alarm in (self._send_alarm, self._cut_alarm, self._heart):
                alarm.close()
            gc.unfreeze()
        if self._crash is not None:
            raise self._crash
        self._log.finish(max(time.monotonic_ns(), self.t0_ns))  # an interrupt can come before t0

    # Before t0

    async def _make_ready(self, transport: Transport) -> None:
        """Encode the first bodies and open the first connections: t0 must not wait for either."""
        while not self._stopped:
            index = self._schedule.take_to_prepare(0, self._held_bytes)
            if index is None:
                break
            await self._encode(index)
        transport.open_ahead(self._schedule.unsent_soon(0))
        while transport.opening and not self._stopped:
            await asyncio.sleep(0.001)

    def _start(self, started: Callable[[], None]) -> None:
        self.t0_ns = time.monotonic_ns() + _START_LEAD_NS
        self.t0_unix_ns = time.time_ns() + self.t0_ns - time.monotonic_ns()
        self._schedule.start(self.t0_ns)
        self._log.start(self.t0_ns, self.t0_unix_ns)
        started()
        self._beat_due_ns = self.t0_ns
        self._second_due_ns = self.t0_ns + NS_PER_S
        self._progress_due_ns = self.t0_ns + _PROGRESS_NS
        self._heart.set(self._beat_due_ns)
        self._on_time()

    # Sending

    def _on_time(self) -> None:
        """Send what is due; after a slice of time let the loop read before going on."""
        if self._stopped:
            return
        now = time.monotonic_ns()
        until = now + _SLICE_NS
        while (index := self._schedule.take_due(now)) is not None:
            self._send(index, now)
            now = time.monotonic_ns()
            if now > until:
                asyncio.get_running_loop().call_soon(self._on_time)
                return
        assert self._transport is not None
        self._transport.open_ahead(self._schedule.unsent_soon(now))
        wake_ns = self._schedule.wake_ns()
        if wake_ns is not None:
            self._send_alarm.set(wake_ns)
        if not self._schedule.remaining:
            self._all_sent()

    def _send(self, index: int, now_ns: int) -> None:
        assert self._transport is not None
        row = self._rows[index]
        request = self._requests.pop(index, None)
        if request is None:
            request = self._encoder.encode(row, index)
        else:
            self._held_bytes -= len(request)
            self._room.set()
        recorder = Recorder(row, self._encoder.dialect, record_text=self._record_text, counts=self._log.reads)
        self._in_flight[recorder] = self._timer(recorder)
        self._log.sending(now_ns - self._schedule.at_ns(index))
        self._transport.send(recorder, request)

    def _timer(self, recorder: Recorder) -> asyncio.TimerHandle | None:
        if self._request_timeout_s is None:
            return None
        # The loop's timers may fire a millisecond early; a request is never cut before its time.
        delay_s = self._request_timeout_s + 0.001
        return asyncio.get_running_loop().call_later(delay_s, self._timed_out, recorder)

    def _all_sent(self) -> None:
        self._stopped = True
        if self._cut_after_ns is not None and self._schedule.sent:
            self._cut_alarm.set(self._schedule.at_ns(self._schedule.sent - 1) + self._cut_after_ns)
        self._check_over()

    # Ends

    def finished(self, exchange: Exchange) -> None:
        """An exchange's outcome is certain (the transport calls this)."""
        assert isinstance(exchange, Recorder)
        timer = self._in_flight.pop(exchange)
        if timer is not None:
            timer.cancel()
        self._log.ended(exchange)
        self._check_over()

    def _timed_out(self, recorder: Recorder) -> None:
        self._end(recorder, "timeout", f"no end within --request-timeout {self._request_timeout_s:g} s")

    def _cut(self, outcome: Outcome, why: str) -> None:
        """End everything in flight now."""
        for recorder in list(self._in_flight):
            self._end(recorder, outcome, why)

    def _end(self, recorder: Recorder, outcome: Outcome, why: str) -> None:
        assert self._transport is not None
        self._transport.drain_all()  # what has come counts
        if recorder in self._in_flight:
            self._transport.forget(recorder)
            recorder.stop(outcome, time.monotonic_ns(), why)
            self.finished(recorder)

    def _check_over(self) -> None:
        if self._stopped and not self._in_flight:
            self._over.set()

    def _interrupt(self) -> None:
        """First: send no more, let what is in flight end. Second: cut it."""
        if self.interrupted:
            self._cut("cancelled", "interrupted")
            return
        self.interrupted = True
        for row in self._rows[self._schedule.sent :]:
            self._log.not_sent(row)
        if self._in_flight:
            self._show(f"interrupted: waiting for {len(self._in_flight)} in flight; once more cuts them off")
        self._all_sent()

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: end the run with the first such error instead of going on half blind."""
        error = context.get("exception") or RuntimeError(context["message"])
        self._crash = self._crash or error
        self._over.set()

    # Beside the sending

    async def _prepare(self) -> None:
        """Encode bodies ahead of their time, as far as time and room allow."""
        while not self._stopped:
            index = self._schedule.take_to_prepare(time.monotonic_ns(), self._held_bytes)
            if index is not None:
                await self._encode(index)
                continue
            at_ns = self._schedule.prepare_ns()
            if at_ns is None:
                return
            wait_ns = at_ns - time.monotonic_ns()
            self._room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ns / NS_PER_S if wait_ns > 0 else None):
                    await self._room.wait()

    async def _encode(self, index: int) -> None:
        until = time.monotonic_ns() + _STEP_SLICE_NS
        steps = self._encoder.steps(self._rows[index], index)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                request: bytes = done.value
                break
            if time.monotonic_ns() > until:
                await asyncio.sleep(0)
                until = time.monotonic_ns() + _STEP_SLICE_NS
        if index >= self._schedule.sent:  # else it was due before it was ready, and encoded on the spot
            self._requests[index] = request
            self._held_bytes += len(request)
        await asyncio.sleep(0)

    def _prepare_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._crash = self._crash or task.exception()
            self._over.set()

    def _beat(self) -> None:
        """Fifty times a second: how late is the loop? Once a second: housekeeping and a health sample."""
        assert self._transport is not None
        now = time.monotonic_ns()
        self._log.loop_lag(now - self._beat_due_ns)
        self._beat_due_ns += _HEARTBEAT_NS * (1 + max(0, now - self._beat_due_ns) // _HEARTBEAT_NS)
        self._heart.set(self._beat_due_ns)
        if now >= self._second_due_ns:
            self._second_due_ns += NS_PER_S * (1 + (now - self._second_due_ns) // NS_PER_S)
            self._log.loop_lag(self._transport.clock.take_max_read_lag())
            self._transport.housekeeping(now)
            self._log.sample(now)
        if now >= self._progress_due_ns:
            self._progress_due_ns += _PROGRESS_NS
            self._show(self._log.progress(now, len(self._rows)))


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
