"""One request on its own: sent, and waited for as long as its client's patience lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ledgers.units import NS_PER_S
from loadgen.patience import Limit
from loadgen.recorder import Recorder
from loadgen.transport import Transport

GRACE_NS = NS_PER_S
"""For the end mark of a stream that has said how it finished: some servers leave it open."""
_LOOK_S = 0.02


async def send_alone(
    transport: Transport,
    recorder: Recorder,
    request: bytes,
    limit: Callable[[], Limit | None],
) -> None:
    """Send it, and return when it has ended; `limit` says again and again what would end it and when."""
    ended = asyncio.Event()
    transport.on_finished = lambda _: ended.set()
    transport.send((recorder, request))
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), _LOOK_S)
        except TimeoutError:
            end = reached(recorder, limit(), time.monotonic_ns())
            if end is not None:
                transport.forget(recorder)
                recorder.stop(end.outcome, end.at_ns, end.why)
                return


def reached(recorder: Recorder, limit: Limit | None, now_ns: int) -> Limit | None:
    """What ends the request now, if anything does."""
    if recorder.over_ns is not None and now_ns - recorder.over_ns > GRACE_NS:
        return Limit(recorder.over_ns, "completed", "")
    return limit if limit is not None and limit.at_ns <= now_ns else None
