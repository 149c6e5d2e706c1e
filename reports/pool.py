"""A pool of processes for simulations, which ends with this process however that ends."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children
from typing import Any

from ledgers.errors import InputError
from reports.processes import end_with_parent

AHEAD = 3  # tasks per process that are handed over
_KILLED = "a process of the pool was killed, perhaps for want of memory: --jobs 1 needs least"
Map = Callable[..., Iterator[Any]]


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def pool(jobs: int) -> Iterator[Map]:
    """A `map` over so many processes, in order; with one job, over this process."""
    if jobs == 1:
        yield map
        return
    with ProcessPoolExecutor(jobs, initializer=_begin, initargs=(os.getpid(),)) as executor:
        try:
            yield partial(_in_order, executor, AHEAD * jobs)
        except BrokenProcessPool:
            raise InputError(_KILLED) from None
        except BaseException:  # what has begun would be waited for
            for process in active_children():
                process.terminate()
            raise


def _in_order(
    executor: Executor, ahead: int, work: Callable[[Any], Any], tasks: Iterable[Any]
) -> Iterator[Any]:
    """The results in order of the tasks, of which only so many are handed over at a time."""
    waiting: deque[Future[Any]] = deque()
    for task in tasks:
        waiting.append(executor.submit(work, task))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _begin(parent: int) -> None:
    """Ctrl-C is the parent's to take; should the parent be killed, nothing goes on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        end_with_parent(parent)
