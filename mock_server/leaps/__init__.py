"""The policies in a form that leaps over ticks. One that has none is run in its plain form.

Each is held equal to its plain form, to which the rules belong, by tests/test_leap.py.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgers.settings import SchedulerSettings
from mock_server.leaps.batch import BatchLeaper
from mock_server.leaps.chunked import ChunkedLeaper
from mock_server.leaps.classes import ClassesLeaper
from mock_server.leaps.driver import Leaper

LEAPERS: dict[str, Callable[[SchedulerSettings], Leaper]] = {
    "immediate": lambda settings: BatchLeaper(settings, 1, alone=True),
    "static": lambda settings: BatchLeaper(settings, settings.max_batch, settings.max_wait_ns, alone=True),
    "continuous": lambda settings: BatchLeaper(settings, settings.max_batch, settings.max_wait_ns),
    "chunked": ChunkedLeaper,
    "classes": ClassesLeaper,
}
