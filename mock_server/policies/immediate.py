"""`immediate`: one request at a time, from prefill to its last token."""

from __future__ import annotations

from mock_server.policies.batch import BatchPolicy
from mock_server.scheduler import Scheduler


class Immediate(BatchPolicy):
    """Start when nothing at all is in service; batch size and wait do not apply."""

    def __init__(self) -> None:
        super().__init__(max_batch=1)

    def may_start(self, scheduler: Scheduler) -> bool:
        return not self.ready
