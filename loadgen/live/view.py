"""What the live view shows: a run's progress in, lines of a given width out. Pure.

Every line tells its meaning by its first word, so that none needs colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ledgers.health import HealthSample
from ledgers.histograms import Histogram
from ledgers.printable import one_line
from ledgers.units import NS_PER_MS, about_left, span
from loadgen.live.progress import Progress

LABEL_WIDTH = 10
WIDEST = 100
LONGEST_BAR, SHORTEST_BAR = 30, 8
FULL, EMPTY = "━", "─"
ASCII_FULL, ASCII_EMPTY = "#", "-"
SILENT_S = 3.0
MOST_FAILURES = 6


def view(progress: Progress, width: int, silent_s: float = 0.0, *, ascii_only: bool = False) -> list[Text]:
    """The lines, none wider than `width`. `silent_s`: since the run last said how it fares."""
    width = max(12, min(width, WIDEST))
    title = Text(one_line(progress.watched.title), style="bold", no_wrap=True)
    title.truncate(width)
    if progress.last is None:
        return [title, *_folded("", ["waiting for the first request to be sent"], width)]
    lines = [title, _bar_line(progress, width, ascii_only)]
    for label, parts in _parts(progress, progress.last, silent_s):
        lines += _folded(label, parts, width)
    return lines


def _bar_line(progress: Progress, width: int, ascii_only: bool) -> Text:
    """`   12 s  ━━━━━────  312 of 1000 ended, about 25 s left`, as much of it as there is room for."""
    begin = f"{span(progress.t_s):>{LABEL_WIDTH - 2}}  "
    ended = f"{progress.ended:,} of {progress.watched.requests:,} ended"
    for end in (f"{ended}, {_left(progress)}", _left(progress), f"{progress.share():.0%}"):
        room = width - len(begin) - len(end) - 2
        if room >= SHORTEST_BAR:
            break
    full, empty = (ASCII_FULL, ASCII_EMPTY) if ascii_only else (FULL, EMPTY)
    length = max(0, min(room, LONGEST_BAR))
    done = int(progress.share() * length)
    line = Text.assemble(
        begin, (full * done, "green"), (empty * (length - done), "dim"), "  ", end, no_wrap=True
    )
    line.truncate(width)
    return line


def _left(progress: Progress) -> str:
    if progress.stopping and progress.last is not None and progress.last.in_flight:
        return f"stopping: waiting for {progress.last.in_flight:,} in flight"
    left_s = progress.left_s()
    if left_s is None:
        return "time left not known yet"
    return about_left(left_s) or "the last are on their way"


def _parts(progress: Progress, last: HealthSample, silent_s: float) -> Iterator[tuple[str, list[str]]]:
    """Label by label what is said."""
    sent = [f"sent {last.sent - last.retries:,}", f"in flight {last.in_flight:,}"]
    again = [f"tried again {last.retries:,}"] if last.retries else []
    not_sent = [f"not sent {progress.not_sent:,}"] if progress.not_sent else []
    yield "requests", [*sent, *again, *not_sent]
    yield "rate", _rate(progress)
    yield "TTFT", _latency(progress.ttft, "no request has completed yet")
    yield "ITL", _latency(progress.itl, "shown every 5 s")
    yield "failures", _failures(progress)
    yield "client", _client(progress, last, silent_s)


def _rate(progress: Progress) -> list[str]:
    rates = progress.rates()
    if rates is None:
        return ["not known yet"]
    asked = "as fast as the cap allows" if rates.asked is None else f"asked {rates.asked:.1f}/s"
    return [asked, f"sent {rates.sent:.1f}/s", f"over the last {rates.over_s:.0f} s"]


def _latency(found: Histogram | None, absent: str) -> list[str]:
    if found is None or not found.n:
        return [absent]
    return [f"p50 {_ms(found.percentile(50))}", f"p99 {_ms(found.percentile(99))}", f"n {found.n:,}"]


def _ms(ns: int | None) -> str:
    value = (ns or 0) / NS_PER_MS
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def _failures(progress: Progress) -> list[str]:
    common = progress.failures.most_common()
    others = sum(count for _, count in common[MOST_FAILURES:])
    found = [f"{count:,} {what}" for what, count in common[:MOST_FAILURES]]
    return [*found, *([f"{others:,} of other kinds"] if others else [])] or ["none"]


def _client(progress: Progress, last: HealthSample, silent_s: float) -> list[str]:
    """Whether the load generator keeps up, and how near it is to not doing so."""
    if silent_s >= SILENT_S:
        verdict = f"NO WORD for {silent_s:.0f} s"
    elif progress.limited:
        verdict = f"CLIENT-LIMITED in {progress.limited} of {progress.samples} seconds"
    else:
        verdict = "ok"
    lag = [f"loop lag {_ms(last.loop_lag_max_ns)}", f"max {_ms(progress.loop_lag_max_ns)}"]
    cpu = [] if last.cpu_share is None else [f"CPU {last.cpu_share:.0%}"]
    return [verdict, *lag, *cpu, *(last.reasons if silent_s < SILENT_S else [])]


def _folded(label: str, parts: Sequence[str], width: int) -> list[Text]:
    """The parts behind the label, a new line where they would be too wide."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 2 + len(part) <= width:
            lines[-1].append(f", {part}")
        else:
            lines.append(Text(f"{'' if lines else label:<{LABEL_WIDTH}}{part}", no_wrap=True))
    for line in lines:
        line.truncate(width)
    return lines
