"""Several processes that send one ledger: each replays a share of it, one writes down what they report.

Workers are forked before there is a loop or a thread, so the ledger is in memory once. They have no file and
no t0 of their own: rows and health go to the leader as messages, and all count from the t0 that it says. A
worker that dies is reported, and the run goes on without it; if the leader dies, the workers go.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NoReturn, TypeVar

import msgspec

from ledgers.errors import InputError
from ledgers.health import HealthSample, merged
from ledgers.ledger import values
from ledgers.rows import RequestRow
from ledgers.units import NS_PER_S
from loadgen.requests import Share
from loadgen.run_log import Log

_LENGTH = struct.Struct("!I")
_END_S = 5.0
_OBEY_S = 2.0
_MOST_WAITING = 3  # samples of the others, for a worker that took none
_TOKENS_PER_PROCESS_S = 60_000  # what one sends and reads with time to spare
_STRETCH_S = 10
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def workers_for(rows: Sequence[RequestRow]) -> int:
    """How many processes the busiest seconds of a ledger take, by what one is known to carry."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, ceil(_busiest(rows) / _TOKENS_PER_PROCESS_S)))


def _busiest(rows: Sequence[RequestRow]) -> float:
    """Output tokens per second that requests ask for in the busiest stretch, each stretch a few seconds."""
    asked: Counter[int] = Counter()
    for arrival_ns, tokens in zip(values(rows, "arrival_ns"), values(rows, "output_tokens"), strict=True):
        asked[(arrival_ns or 0) // (_STRETCH_S * NS_PER_S)] += tokens
    return max(asked.values()) / _STRETCH_S


class Begin(msgspec.Struct, tag=True):
    """All that is known before a worker makes itself ready, pickled."""

    known: bytes


class Ready(msgspec.Struct, tag=True):
    """The first connections are open, the first bodies encoded."""


class Start(msgspec.Struct, tag=True):
    """t0, on the monotonic clock that all processes of a machine share."""

    t0_ns: int


class Interrupt(msgspec.Struct, tag=True):
    """The user wants it to stop."""


class Ended(msgspec.Struct, tag=True):
    """A request has a row; and a text to be counted, perhaps."""

    row: RequestRow
    text: str | None


class Sampled(msgspec.Struct, tag=True):
    sample: HealthSample


class Done(msgspec.Struct, tag=True):
    """A share is through: what is left to say of it."""

    left_out: int = 0
    connections_opened: int = 0
    resent: int = 0
    unstamped: int = 0
    largest_step_ns: int = 0

    def plus(self, other: Done) -> Done:
        total = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        return Done(**{**total, "largest_step_ns": max(self.largest_step_ns, other.largest_step_ns)})


class Failed(msgspec.Struct, tag=True):
    """It cannot go on, for a reason that is the user's to mend."""

    why: str


M = TypeVar("M", Begin, Start, Interrupt)
_encoder = msgspec.msgpack.Encoder()
_orders = msgspec.msgpack.Decoder(Begin | Start | Interrupt)
_news = msgspec.msgpack.Decoder(Ready | Ended | Sampled | Done | Failed)


class Lost(msgspec.Struct):
    """A worker that died: which requests were its own, when (monotonic ns) and how."""

    share: Share
    died_ns: int
    why: str


class Leader:
    """The leader, as a worker sees it: orders come from it, and it is the log of what happens."""

    def __init__(self, orders: socket.socket, news: socket.socket) -> None:
        self._orders_socket = orders
        self._news = news

    async def listen(self) -> Any:
        """What is known before the start."""
        # A stream whose writer is not kept is closed.
        self._orders, self._kept = await asyncio.open_connection(sock=self._orders_socket)
        return pickle.loads((await self._order(Begin)).known)

    async def agree(self) -> int:
        """Say that all is ready, and wait for t0."""
        self._send(Ready())
        return (await self._order(Start)).t0_ns

    async def obey(self, interrupt: Callable[[], None]) -> None:
        """From t0 on: pass on that the user wants to stop; end with the leader."""
        while await self._order(Interrupt):
            interrupt()

    async def _order(self, kind: type[M]) -> M:
        """The next order. There is nothing left to do in a worker whose leader is gone."""
        order = await _received(self._orders, _orders)
        if order is None:
            os._exit(1)
        assert isinstance(order, kind)
        return order

    def add(self, row: RequestRow, text: str | None = None) -> None:
        self._send(Ended(row, text))

    def add_health(self, sample: HealthSample) -> None:
        self._send(Sampled(sample))

    def done(self, done: Done) -> None:
        self._send(done)

    def failed(self, why: str) -> None:
        self._send(Failed(why))

    def _send(self, message: Any) -> None:
        data = _encoder.encode(message)
        try:
            self._news.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:  # there is no leader any more
            os._exit(1)


class _Worker(msgspec.Struct):
    """A worker, as the leader sees it."""

    share: Share
    pid: int
    orders: socket.socket
    news: socket.socket
    reader: asyncio.StreamReader | None = None
    kept: asyncio.StreamWriter | None = None  # a stream whose writer is not kept is closed
    samples: deque[HealthSample] = msgspec.field(default_factory=deque)
    last: HealthSample = msgspec.field(default_factory=lambda: HealthSample(t_ns=0))
    over: bool = False  # it will report no more
    died: bool = False
    code: int | None = None

    def order(self, message: Any) -> None:
        data = _encoder.encode(message)
        try:
            self.orders.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:  # it is dead, as its silence will tell
            return

    def next_sample(self) -> HealthSample:
        """The next that it took; of one that is over, what it came to."""
        if self.samples:
            self.last = self.samples.popleft()
            return self.last
        return HealthSample(
            t_ns=self.last.t_ns,
            processes=0 if self.died else 1,
            lost_processes=1 if self.died else 0,
            asked=self.last.asked,
            sent=self.last.sent,
            retries=self.last.retries,
        )

    def ended(self) -> int | None:
        """How the process ended, if it has: its exit code, or less than 0 for a signal."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


class Crew:
    """The workers, to be made before there is an event loop; `close` sees to it that none is left."""

    def __init__(self, count: int, work: Callable[[Share, Leader], None]) -> None:
        self._workers: list[_Worker] = []
        self._interrupts = 0
        sys.stdout.flush()
        sys.stderr.flush()
        for first in range(count):
            self._fork(Share(first, count), work)

    def _fork(self, share: Share, work: Callable[[Share, Leader], None]) -> None:
        orders, orders_there = socket.socketpair()
        news, news_there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for ours in (orders, news, *(end for w in self._workers for end in (w.orders, w.news))):
                ours.close()
            _work(work, share, Leader(orders_there, news_there))
        orders_there.close()
        news_there.close()
        self._workers.append(_Worker(share, pid, orders, news))

    async def begin(self, known: Any) -> None:
        """Have all of them make themselves ready, and wait for that."""
        for worker in self._workers:
            worker.order(Begin(pickle.dumps(known)))
            worker.reader, worker.kept = await asyncio.open_connection(sock=worker.news)
        for worker in self._workers:
            if isinstance(message := await self._next(worker), Failed):
                raise InputError(message.why)  # else it is ready, or dead

    def start(self, t0_ns: int) -> None:
        for worker in self._workers:
            worker.order(Start(t0_ns))

    async def run(self, log: Log) -> tuple[Done, list[Lost]]:
        """To the end of the last. InputError if one of them met something that the user must mend."""
        done, lost = Done(), []
        for ended in await asyncio.gather(*(self._follow(worker, log) for worker in self._workers)):
            if isinstance(ended, Lost):
                lost.append(ended)
            else:
                done = done.plus(ended)
        return done, lost

    def interrupt(self) -> None:
        """Pass it on. After the second time, a worker that does not end soon is killed."""
        for worker in self._workers:
            worker.order(Interrupt())
        self._interrupts += 1
        if self._interrupts == 2:
            asyncio.get_running_loop().call_later(_OBEY_S, self._kill_the_deaf)

    def _kill_the_deaf(self) -> None:
        for worker in self._workers:
            if not worker.over and worker.ended() is None:
                os.kill(worker.pid, signal.SIGKILL)

    def close(self) -> None:
        """End all of them: those that do not go with their leader are killed."""
        for worker in self._workers:
            worker.orders.close()
            worker.news.close()
        until = time.monotonic() + _END_S
        for worker in self._workers:
            while worker.ended() is None:
                if time.monotonic() > until:
                    os.kill(worker.pid, signal.SIGKILL)
                time.sleep(0.002)
        self._workers.clear()

    async def _follow(self, worker: _Worker, log: Log) -> Done | Lost:
        """Write down what it reports, to the end."""
        done = None
        while (message := await self._next(worker)) is not None:
            if isinstance(message, Ended):
                log.add(message.row, message.text)
            elif isinstance(message, Sampled):
                worker.samples.append(message.sample)
                self._write_health(log)
            elif isinstance(message, Failed):
                raise InputError(message.why)
            elif isinstance(message, Done):
                done = message
        worker.over, worker.died = True, done is None
        self._write_health(log)
        return done or Lost(worker.share, time.monotonic_ns(), await _why_it_died(worker))

    def _write_health(self, log: Log) -> None:
        """A sample of all is due when every worker that goes on has taken one, or does not seem to."""
        while any(w.samples for w in self._workers) and (
            all(w.samples or w.over for w in self._workers)
            or any(len(w.samples) >= _MOST_WAITING for w in self._workers)
        ):
            log.add_health(merged([worker.next_sample() for worker in self._workers]))

    async def _next(self, worker: _Worker) -> Any:
        assert worker.reader is not None
        return await _received(worker.reader, _news)


async def _received(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    """The next message; None when there will be none."""
    try:
        length = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _work(work: Callable[[Share, Leader], None], share: Share, leader: Leader) -> NoReturn:
    """The whole life of a worker. A terminal signals all processes, but here the leader passes it on."""
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        work(share, leader)
        code = 0
    except InputError as error:
        leader.failed(str(error))
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)


async def _why_it_died(worker: _Worker) -> str:
    number = f"worker {worker.share.first + 1} of {worker.share.step}"
    until = time.monotonic() + _END_S
    while (code := worker.ended()) is None:
        if time.monotonic() > until:
            return f"{number} closed its connection"
        await asyncio.sleep(0.01)
    return f"{number} died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
