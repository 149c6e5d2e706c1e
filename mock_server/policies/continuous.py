"""`continuous`: iteration-level scheduling, as in Orca (Yu et al., OSDI 2022)."""

from __future__ import annotations

from mock_server.policies.batch import BatchPolicy
from mock_server.scheduler import Scheduler


class Continuous(BatchPolicy):
    """Start a formed batch while earlier requests may still be decoding."""

    def may_start(self, scheduler: Scheduler) -> bool:
        return self.formed(scheduler)
