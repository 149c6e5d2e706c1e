"""A pool of processes for simulations, which ends with this process however that ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children
from typing import Any

from reports.processes import end_with_parent

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
            yield executor.map
        except BaseException:  # what has begun would be waited for
            executor.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise


def _begin(parent: int) -> None:
    """Ctrl-C is the parent's to take; should the parent be killed, nothing goes on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        end_with_parent(parent)
