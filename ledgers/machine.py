"""The machine under a run: its facts, the limits of a process, the event loop. For drivers, not for cores."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_TABLE_SIZE = 65_536  # open files for which there is room from the start
_MANY_OBJECTS = 200_000  # more than what ten thousand streams add


def host_facts() -> dict[str, Any]:
    """What of this machine can matter to a reader of the figures."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The event loop of uvloop where that is installed: it costs less per read and write."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def make_room_for_connections() -> None:
    """Raise the limit of open files to what the system grants, and have their table made large at once.

    Linux grows the table as files are opened, and each time makes the process wait, 10 to 30 ms, until no
    other CPU looks at the old one. That would fall into a run, as a stall of every stream.
    """
    import fcntl
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # some systems name a limit that they do not grant
            hard = soft
    most = _TABLE_SIZE if hard == resource.RLIM_INFINITY else min(hard, _TABLE_SIZE)
    with open(os.devnull, "rb") as file, suppress(OSError):
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, most - 1))


@contextmanager
def few_collections() -> Iterator[None]:
    """Look for garbage only when there is much that may be: over a thousand streams it takes 20 ms.

    Both sides of a measurement make next to no cycles; what they are done with goes without a search.
    """
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_MANY_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
