"""Recorded shapes of real servers' streams: their bytes, and what a right reader makes of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgers.rows import RequestRow
from loadgen.dialects.dialect import Output

DATA = Path(__file__).parent / "data" / "transcripts"


@dataclass(frozen=True)
class Transcript:
    """`parts` are the pieces of the body as they were sent; `close` is how the connection went on."""

    name: str
    api: str
    status: int
    headers: dict[str, str]
    framing: str
    parts: list[bytes]
    close: str
    expect: dict[str, Any]

    @property
    def head(self) -> bytes:
        framing = {
            "chunked": "Transfer-Encoding: chunked",
            "content-length": f"Content-Length: {sum(map(len, self.parts))}",
            "close": "Connection: close",
        }[self.framing]
        lines = [f"HTTP/1.1 {self.status} X", *(f"{k}: {v}" for k, v in self.headers.items()), framing]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def framed(self, pieces: Iterable[bytes]) -> list[bytes]:
        """Each piece of the body as it stands on the wire."""
        return [b"%x\r\n%s\r\n" % (len(p), p) if self.framing == "chunked" else p for p in pieces]

    @property
    def end(self) -> bytes:
        """What ends the message, where it is ended in order."""
        return b"0\r\n\r\n" if self.framing == "chunked" and self.close == "normal" else b""

    @property
    def broken(self) -> str | None:
        """Why the connection was lost; None where it was closed in order, or with a FIN too early."""
        return None if self.close == "normal" or "close_detail" in self.expect else "reset"

    @property
    def outcomes(self) -> set[str]:
        """The outcomes that are right, in our words."""
        ours = {"ok": "completed", "error": "stream_error"}
        said = self.expect["outcome"]
        if said == "truncated" and self.close == "normal" and not self.parts:
            return {"empty"}  # an orderly end of nothing
        return {ours.get(name, name) for name in (said, *self.expect.get("also_accept", ()))}


def load_all() -> list[Transcript]:
    return [_load(path) for path in sorted(DATA.glob("*.json"))]


def _load(path: Path) -> Transcript:
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Transcript(
        raw["name"],
        raw["endpoint"],
        raw["status"],
        raw["headers"],
        raw["framing"],
        [base64.b64decode(part["b64"]) for part in raw["parts"]],
        raw["close"],
        raw["expect"],
    )


def differences(case: Transcript, row: RequestRow, output: Sequence[Output]) -> dict[str, Any]:
    """What of a row is not as it should be: {what: (it is, it should be)}."""
    said = {
        "text": row.text,
        "reasoning_text": row.reasoning_text,
        "content_events": row.events,
        "finish_reason": row.finish_reason,
        "tool_text": _joined(output, "tool"),
        "refusal_text": _joined(output, "refusal"),
        "other_choices_text": _others(output),
        "streamed": row.streamed,
        "error_message": row.error,
        **_tokens(row),
    }
    expected = {**case.expect, **_expected_tokens(case), "streamed": _streamed(case)}
    wrong = {
        what: (said[what], expected[what])
        for what in said
        if what in expected and said[what] != expected[what]
    }
    if row.outcome not in case.outcomes:
        wrong["outcome"] = (row.outcome, case.outcomes)
    if case.expect.get("error_message_has", "") not in (row.error or ""):
        wrong["error"] = (row.error, case.expect["error_message_has"])
    if (row.error is None) != (row.outcome == "completed"):
        wrong["error"] = (row.error, row.outcome)
    return wrong


def _joined(output: Sequence[Output], kind: str, choice: int = 0) -> str:
    return "".join(piece.text for piece in output if (piece.kind, piece.choice) == (kind, choice))


def _others(output: Sequence[Output]) -> dict[str, str]:
    return {
        str(choice): _joined(output, "text", choice) for choice in {piece.choice for piece in output} - {0}
    }


def _tokens(row: RequestRow) -> dict[str, Any]:
    return {
        "tokens": row.tokens,
        "token_source": row.token_source,
        "usage_prompt_tokens": row.usage_prompt_tokens,
    }


def _expected_tokens(case: Transcript) -> dict[str, Any]:
    usage, timed = case.expect["usage"], case.expect.get("timings_predicted_n")
    if usage is not None:
        return {
            "tokens": usage["completion_tokens"],
            "token_source": "usage",
            "usage_prompt_tokens": usage["prompt_tokens"],
        }
    if timed is not None:
        return {"tokens": timed, "token_source": "timings"}
    if case.status != 200 or case.expect.get("streamed") is False:
        return {"tokens": None, "token_source": None, "usage_prompt_tokens": None}
    return {"tokens": case.expect["content_events"], "token_source": "events", "usage_prompt_tokens": None}


def _streamed(case: Transcript) -> bool | None:
    if case.status != 200 or not case.parts:
        return None
    return bool(case.expect.get("streamed", True))
