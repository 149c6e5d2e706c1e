"""The benchmark of the stamps counts every request, or says in one line why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stamp_error import Figures, add_ours
from ledgers.rows import RequestRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter

COMPLETED = RequestRow(
    id="R1", request_id="x-R1", prompt_tokens=1, output_tokens=2, outcome="completed",
    sent_ns=100, first_token_ns=1_100, last_token_ns=2_100,
)  # fmt: skip
TRUTH = {"x-R1": {"recv_ns": "5000", "first_ns": "5900", "last_ns": "6950", "sent": "2"}}


def run_of(path: Path, rows: list[RequestRow]) -> Run:
    writer = RunWriter(path / "run", RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo("x")))
    for row in rows:
        writer.add(row)
    writer.close(complete=True)
    return Run(path / "run")


def test_an_error_is_what_the_client_says_minus_what_the_server_did(tmp_path: Path) -> None:
    """First token 1,000 ns after the send against 900 after the receipt; last 2,000 against 1,950."""
    figures = Figures()
    add_ours(run_of(tmp_path, [COMPLETED]), 1, TRUTH, figures)
    assert (figures.ttft, figures.last, figures.tokens) == ([100], [50], 2)


@pytest.mark.parametrize(
    ("rows", "count", "truth", "said"),
    [
        ([], 1, TRUTH, "0 rows for 1 requests"),
        ([COMPLETED], 2, TRUTH, "1 rows for 2 requests"),
        ([COMPLETED], 1, {}, "request x-R1: not in the server's log"),
        (
            [RequestRow(id="R1", prompt_tokens=1, output_tokens=2, outcome="timeout", error="late")],
            1,
            TRUTH,
            "request R1: timeout, late",
        ),
    ],
)
def test_no_request_is_passed_over(
    tmp_path: Path, rows: list[RequestRow], count: int, truth: dict[str, dict[str, str]], said: str
) -> None:
    """A failed, missing or unknown request would leave a figure that looks better than it is."""
    with pytest.raises(SystemExit, match=said):
        add_ours(run_of(tmp_path, rows), count, truth, Figures())
