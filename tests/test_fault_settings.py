"""Which faults are in force on a server, and which request gets which: flags, `/mock/config`, numbers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ledgers.rundir import Run
from tests.conftest import json_lines, refused, serving, tokentick
from tests.test_faults_on_the_wire import request
from tests.test_server import ask, send
from tests.transcripts import DATA


def test_configuration_changes_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """What is in force is told, obeyed and kept in the run directory; a mistake changes nothing."""
    with serving(tmp_path / "served", "--tick=0.01", "--fault=cut:after=2@0") as server:

        def post(config: object) -> tuple[int, Any]:
            status, body, _ = ask(server, "POST", "/mock/config", json.dumps(config).encode())
            return status, json.loads(body) if isinstance(body, bytes) else body

        first = {"faults": ["cut:after=2@0"], "seed": 0, "plan": []}
        assert json.loads(ask(server, "GET", "/mock/config")[1]) == first
        for wrong in (
            {"faults": ["http-500"], "seed": "x"},
            {"sead": 1},
            {"faults": ["bang"]},
            [],
            {"plan": 1},
        ):
            status, body = post(wrong)
            assert (status, body["error"]["code"]) == (400, "invalid_config"), wrong
        assert json.loads(ask(server, "GET", "/mock/config")[1]) == first
        assert request(server, None, {"max_tokens": 2}).status == 200
        plan = [{"request_id": "a", "fault": "http-503:retry_after=1"}]
        changed = {"faults": ["http-500@1"], "seed": 3, "plan": plan}
        assert post(changed) == (200, changed)
        assert [request(server, None, {}, id).status for id in ("a", "b")] == [503, 500]
        assert post({"faults": []}) == (200, {**changed, "faults": []})
        assert request(server, None, {"max_tokens": 2}, "b").status == 200
        assert server.stop() == 0
    kept = Run(tmp_path / "served").info.config.extra["faults"]
    assert [change["from_request"] for change in kept] == ["S1", "S2", "S4"]
    assert kept[1] == {"from_request": "S2", **changed}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--fault=bang"], "bang"),
        (["--fault=cut@2"], "probability"),
        (["--fault=script:x@0.1"], "unknown script"),
        (["--fault-plan=nowhere.jsonl"], "--fault-plan nowhere.jsonl"),
        (["--script=nowhere.json"], "--script nowhere.json"),
        (["--fault-plan=/dev/zero"], "larger than 4 MiB"),
    ],
)
def test_flags_that_cannot_be_are_one_line(tmp_path: Path, flags: list[str], named: str) -> None:
    """Exit code 2, before anything listens."""
    refused(tokentick("serve", "--port=0", *flags, cwd=tmp_path), 2, named)


@pytest.mark.parametrize("fault", ["http-500", "script:sse_hang_midstream", "cut:after=0"])
def test_a_fault_by_number_is_that_of_the_request_with_this_number(tmp_path: Path, fault: str) -> None:
    """A request that takes long to read is not the first, though it came first; one is hit, and not both."""
    plan = tmp_path / "plan.csv"
    plan.write_text(f"number,fault\n1,{fault}\n")
    script = DATA / "sse_hang_midstream.json"
    flags = (f"--fault-plan={plan}", f"--script={script}", "--tick=0.01", "--grace=0.5")
    with serving(tmp_path / "served", *flags) as server:
        first = send(server, {"prompt": "time " * 800_000, "max_tokens": 2, "stream": True})
        time.sleep(0.05)
        second = send(server, {"prompt": "time", "max_tokens": 2, "stream": True})
        for connection in (first, second):
            assert connection.recv(5) == b"HTTP/"
        assert server.stop() == 0
        first.close()
        second.close()
    faults = {row["id"]: row["fault"] for row in json_lines(tmp_path / "served" / "requests.jsonl")}
    assert faults.keys() == {"S1", "S2"}
    assert [id for id, word in faults.items() if word] == ["S1"]
