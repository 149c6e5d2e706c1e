"""What every client is asked to do, and how the server answers it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ledgers.units import seconds

PROMPT_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests at times in ns from the start, `tokens` long. With a `rate`, they come evenly at that."""

    arrivals_ns: list[int]
    tokens: int
    rate: float | None = None
    ttft_ms: float = 100
    gap_ms: float = 20
    align_ms: float = 0
    coalesce: int = 1
    record_tokens: bool = False  # also the time of each

    @property
    def requests(self) -> int:
        return len(self.arrivals_ns)

    @property
    def most_at_once(self) -> int:
        return max(Counter(self.arrivals_ns).values())

    def write_plan(self, path: Path) -> Path:
        rows = (f"{seconds(at)},{PROMPT_TOKENS},{self.tokens}\n" for at in self.arrivals_ns)
        path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))
        return path

    def server_flags(self) -> list[str]:
        """How the server is to answer; only what differs from what any such server does."""
        flags = {"--ttft": self.ttft_ms, "--itl": self.gap_ms}
        if self.align_ms:
            flags["--align"] = self.align_ms
        if self.coalesce > 1:
            flags["--coalesce"] = self.coalesce
        return [word for name, value in flags.items() for word in (name, f"{value:g}")]


def evenly(count: int, rate: float) -> list[int]:
    """Times of a constant rate."""
    return [round(i / rate * 1e9) for i in range(count)]
