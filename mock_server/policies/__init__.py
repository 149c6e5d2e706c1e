"""When prefill may start, and who decodes. One file per policy, one line here."""

from __future__ import annotations

from collections.abc import Callable

from ledgers.settings import SchedulerSettings
from mock_server.policies.chunked import Chunked
from mock_server.policies.classes import Classes
from mock_server.policies.continuous import Continuous
from mock_server.policies.immediate import Immediate
from mock_server.policies.static import Static
from mock_server.scheduler import Policy, Scheduler

POLICIES: dict[str, Callable[[SchedulerSettings], Policy]] = {
    "immediate": lambda _: Immediate(),
    "static": lambda settings: Static(settings.max_batch, settings.max_wait_ns),
    "continuous": lambda settings: Continuous(settings.max_batch, settings.max_wait_ns),
    "chunked": lambda settings: Chunked(settings.prefill_chunk),
    "classes": Classes,
}


def make_scheduler(settings: SchedulerSettings) -> Scheduler:
    return Scheduler(
        POLICIES[settings.policy](settings),
        settings.hardware,
        max_queue=settings.max_queue,
        max_model_len=settings.max_model_len,
    )
