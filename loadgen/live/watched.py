"""Keeps up with a run that goes on, by the files that it writes: read piece by piece, as they grow."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ledgers.health import HealthSample
from ledgers.rows import row_decoder
from ledgers.tail import Tail
from loadgen.live.progress import Progress, Watched

_health = msgspec.json.Decoder(HealthSample)


class Watch:
    """Keeps a run's progress up to date."""

    def __init__(self, watched: Watched) -> None:
        self.progress = Progress(watched)
        path = Path(watched.path)
        names = ("requests.jsonl", "health.jsonl", "histograms.hlog")
        self._rows, self._health, self._histograms = (Tail(path / name) for name in names)

    def look(self) -> bool:
        """Read what is new; whether there was anything."""
        rows, samples, intervals = self._rows.lines(), self._health.lines(), self._histograms.lines()
        for line in rows:
            self.progress.add(row_decoder.decode(line))
        for line in samples:
            self.progress.add_health(_health.decode(line))
        for line in intervals:
            self.progress.add_log_line(line.decode("ascii"))
        return bool(rows or samples or intervals)
