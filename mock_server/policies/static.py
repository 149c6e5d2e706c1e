"""`static`: a formed batch, served until its last token before the next one starts."""

from __future__ import annotations

from mock_server.policies.batch import BatchPolicy
from mock_server.scheduler import Scheduler


class Static(BatchPolicy):
    """Start a formed batch when the whole previous one has finished."""

    def may_start(self, scheduler: Scheduler) -> bool:
        return not self.ready and self.formed(scheduler)
