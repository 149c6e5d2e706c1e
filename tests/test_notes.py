"""What a run says besides its figures: once for each reader, in 80 columns."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ledgers.rundir import Run
from tests.conftest import COMMAND, MockServer

NOTES = ("sessions are labels", "1 requests are longer than the model's context", "no server metrics: ")


@pytest.mark.parametrize("together", [True, False])
def test_notes_stand_once_on_a_screen_and_in_a_file(
    server: MockServer, tmp_path: Path, together: bool
) -> None:
    """Before the run and not again behind it; a report that goes elsewhere has them too."""
    lines = ["prompt_tokens,output_tokens,arrival_s,session", "9,5,0,s1", "90,5,0.1,s1"]
    (tmp_path / "ledger.csv").write_text("\n".join(lines) + "\n")
    words = ["run", "ledger.csv", "--base-url", server.url, "--scrape", f"{server.url}/nothing/at/all"]
    result = subprocess.run(
        [*COMMAND, *words, "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert result.returncode in (0, 4), result.stderr
    streams = [result.stdout] if together else [result.stdout, result.stderr]
    for text in streams:
        assert max(map(len, text.splitlines())) <= 80
        for note in NOTES:
            assert " ".join(text.split()).count(f"note: {note}") == 1, text
    assert all(any(line.startswith(note) for line in Run(tmp_path / "run").info.notes) for note in NOTES)
