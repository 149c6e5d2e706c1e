"""A calibration as Markdown: the answer, and a table of all loads that were tried."""

from __future__ import annotations

from ledgers.calibration import Calibration
from reports.calibration_text import COLUMNS, LEGEND, answer_words, cells, reasons
from reports.markdown import bullets, escaped, joined, table


def calibration_markdown(calibration: Calibration) -> str:
    rungs = calibration.rungs
    return joined(
        [
            "## Calibration",
            f"**{escaped(answer_words(calibration))}**",
            table(COLUMNS, map(cells, rungs), "l" + "r" * (len(COLUMNS) - 2) + "l"),
            escaped(LEGEND),
            bullets(words for rung in rungs for words in reasons(rung)),
        ]
    )
