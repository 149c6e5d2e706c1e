"""Probes: small requests that go the way of the measured ones, one at a time, and are not recorded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from ledgers.rows import RequestRow
from ledgers.units import NS_PER_S
from ledgers.vocabulary import count_tokens
from loadgen.alone import send_alone
from loadgen.negotiation import IN_STREAM, Refusal, named_fields
from loadgen.patience import Limit
from loadgen.prompts import RequestEncoder
from loadgen.recorder import Recorder
from loadgen.server_facts import Preflight
from loadgen.transport import Transport


class Probed(NamedTuple):
    """What came of a probe. `refusal` is what the server said in place of an answer."""

    row: RequestRow
    refusal: Refusal | None
    headers: Mapping[str, str]
    ran_on: bool
    """More came than was asked for."""

    @property
    def completed(self) -> bool:
        return self.row.outcome == "completed"


class Prober:
    """Sends requests over the run's own transport, one at a time, and stops those that run on."""

    def __init__(
        self,
        asking: Preflight,
        transport: Transport,
        encoder: RequestEncoder,
        id_prefix: str,
        timeout_s: float,
    ) -> None:
        self.encoder = encoder
        self._asking = asking
        self._transport = transport
        self._id_prefix = id_prefix
        self._timeout_s = timeout_s
        self._sent = 0

    def next_id(self) -> str:
        self._sent += 1
        return f"{self._id_prefix}-probe-{self._sent}"

    async def send(self, text: str, output_tokens: int) -> Probed:
        """Where prompts are token ids, as many of them as the text has words."""
        ids = self.encoder.wording.is_ids
        row = RequestRow(
            id="probe",
            request_id=self.next_id(),
            prompt_tokens=count_tokens(text),
            output_tokens=output_tokens,
            prompt=None if ids else text,
        )
        recorder = Recorder(row, self.encoder.dialect, choices=self.encoder.choices)
        most = output_tokens * self.encoder.choices
        started_ns = time.monotonic_ns()

        def limit() -> Limit:
            if len(recorder.token_ns) > most:
                return Limit(time.monotonic_ns(), "cancelled", "more output than was asked for")
            from_ns = recorder.last_token_ns or started_ns
            why = f"no token within {self._timeout_s:g} s"
            return Limit(from_ns + round(self._timeout_s * NS_PER_S), "timeout", why)

        await send_alone(self._transport, recorder, self.encoder.encode(row, -self._sent), limit)
        answer = recorder.row(0, scrub=self._asking.scrub)
        ran_on = max(answer.tokens or 0, len(recorder.token_ns)) > most
        return Probed(answer, self._refusal(recorder), recorder.server_headers, ran_on)

    def _refusal(self, recorder: Recorder) -> Refusal | None:
        """What the server said instead of answering: by its status, or of our fields in the stream."""
        status, why = recorder.http_status, self._asking.short(recorder.error or "")
        if recorder.outcome == "http_error" and status is not None:
            return Refusal(status, why, recorder.error_body)
        in_stream = Refusal(IN_STREAM, why)
        told = recorder.outcome == "stream_error" and named_fields(in_stream, self.encoder.fields)
        return in_stream if told else None
