"""`--scrape`: what is read of a server's metrics, what is made of it, and that it is in nobody's way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ledgers.errors import InputError
from ledgers.rows import RequestRow
from ledgers.rundir import Run
from ledgers.server_metrics import ServerSample, ServerSide, growth, interval_places, tokens_by
from loadgen.scrape import Scrape, metrics_in, parse_scrape
from loadgen.target import parse_target
from tests.conftest import MockServer, json_lines, tokentick
from tests.scripted_server import Request, answered, plain, quick, raw_server, scripted_server
from tests.test_loadgen_run import ledger, tokentick_run, url

S = 1_000_000_000
KEY = "sk-very-secret-key"
LLAMA_CPP = b"""# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total %d
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total %d
# HELP llamacpp:predicted_tokens_seconds Average generation throughput in tokens/s.
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds nan
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 2
"""


def test_engines_are_summed_and_their_kv_averaged() -> None:
    """As vLLM says it with two engines; labels may have anything in them, a time stamp may follow."""
    text = rb"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b {\" 9"} 3.0
vllm:num_requests_running{engine="1",model_name="a } b {\" 9"} 4.0 1700000000000
vllm:num_requests_running_more{engine="0"} 99.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 7.0
vllm:time_to_first_token_seconds_sum{engine="0"} 1.25e-1
vllm:time_to_first_token_seconds_count{engine="0"} 7.0
vllm:num_requests_waiting{engine="0"} NaN
vllm:generation_tokens_total
process_open_fds 12.0
"""
    assert metrics_in(text) == {
        "running": 7.0,
        "kv_usage": 0.375,
        "ttft_sum_s": 0.125,
        "ttft_count": 7.0,
    }


def test_one_thing_under_two_names_counts_once() -> None:
    """Servers keep old names beside the new ones for a while."""
    text = b'vllm:time_per_output_token_seconds_sum{m="a"} 5\nvllm:inter_token_latency_seconds_sum{m="a"} 5\n'
    assert metrics_in(text) == {"itl_sum_s": 5.0}


def test_llama_cpp_is_understood() -> None:
    """Its names have no labels, and its averages may be nan."""
    assert metrics_in(LLAMA_CPP % (10, 20)) == {
        "prompt_tokens_total": 10.0,
        "generation_tokens_total": 20.0,
        "running": 1.0,
        "waiting": 2.0,
    }


def scrape(where: str) -> Scrape:
    headers = {"User-Agent": "tokentick/1", "Authorization": f"Bearer {KEY}", "Accept": "text/event-stream"}
    return parse_scrape(where, 1.0, parse_target("https://llm.example:8443/base/v1"), headers)


def test_the_key_goes_to_no_other_server() -> None:
    """It was given for the measured one; another has the login that its own URL names."""
    for where in ("auto", "https://llm.example:8443/other"):
        assert scrape(where).headers["Authorization"] == f"Bearer {KEY}"
        assert scrape(where).headers["Accept"] == "text/plain"
    for where in ("https://llm.example/metrics", "http://llm.example:8443", "http://metrics.example"):
        assert "Authorization" not in scrape(where).headers
    assert scrape("http://a:b@metrics.example").headers["Authorization"] == "Basic YTpi"


def test_where_metrics_are() -> None:
    """/metrics beside the measured /v1, or just what was said."""
    assert scrape("auto").url == "https://llm.example:8443/base/metrics"
    assert scrape("http://metrics.example:9100").url == "http://metrics.example:9100/metrics"
    assert scrape("http://metrics.example/prom?name=a").path == "/prom?name=a"
    with pytest.raises(InputError, match=r"--scrape-interval 0\.05"):
        parse_scrape("auto", 0.05, parse_target("http://llm.example"), {})
    for where in ("toy", "ftp://metrics.example/", "http://"):
        with pytest.raises(InputError, match="--scrape"):
            scrape(where)


def test_a_long_run_is_shown_in_at_most_20_intervals() -> None:
    """All between the first sample and the last; a last one that is short joins the one before."""
    for count in (2, 3, 20, 21, 22, 100, 3601):
        places = interval_places([S * second for second in range(count)])
        assert (places[0], places[-1]) == (0, count - 1)
        assert len(places) - 1 <= 20
        assert places == sorted(set(places))
    assert interval_places([0, S, 2 * S, 2 * S + 1]) == [0, 1, 3]
    assert interval_places([0]) == []


def test_a_count_that_falls_has_begun_anew() -> None:
    """A restarted server: 5 more, then 3 since it began again."""
    samples = [ServerSample(t_ns=0, requests_total=value) for value in (10.0, 15.0, 3.0)]
    assert growth(samples, "requests_total") == 8
    assert growth(samples, "e2e_count") is None


def row(number: int, sent_s: float, first_s: float, last_s: float, **fields: Any) -> RequestRow:
    times = {"sent_ns": sent_s, "first_token_ns": first_s, "last_token_ns": last_s, "end_ns": last_s}
    in_ns: dict[str, Any] = {name: int(seconds * S) for name, seconds in times.items()}
    known: dict[str, Any] = {"prompt_tokens": 7, "output_tokens": 11, "tokens": 11, "outcome": "completed"}
    return RequestRow(**{"id": f"R{number}", **known, **in_ns, **fields})


def test_tokens_are_spread_from_the_first_to_the_last() -> None:
    """The first comes at once, the others evenly; where their times are known, these count."""
    even = row(1, 0, 1, 2)
    assert [tokens_by(even, int(s * S)) for s in (0.5, 1, 1.5, 2, 3)] == [0, 1, 6, 11, 11]
    known = row(1, 0, 1, 2, token_ns=[S] * 10 + [2 * S])
    assert tokens_by(known, int(1.5 * S)) == 10


def test_both_sides_of_the_same_seconds() -> None:
    """Two requests over three samples: in flight at the same instants, tokens of the same intervals."""
    side = ServerSide(
        [
            ServerSample(
                t_ns=-S // 10,
                took_ns=1,
                running=0,
                waiting=0,
                generation_tokens_total=100,
                prompt_tokens_total=50,
                ttft_sum_s=9.0,
                ttft_count=9,
            ),
            ServerSample(
                t_ns=S,
                took_ns=1,
                running=1,
                waiting=1,
                kv_usage=0.5,
                generation_tokens_total=101,
                prompt_tokens_total=57,
                ttft_sum_s=9.4,
                ttft_count=10,
            ),
            ServerSample(t_ns=2 * S, missed=2, error="no answer"),
            ServerSample(
                t_ns=3 * S,
                took_ns=1,
                running=0,
                waiting=0,
                generation_tokens_total=122,
                prompt_tokens_total=64,
                ttft_sum_s=11.0,
                ttft_count=11,
            ),
        ]
    )
    side.add(row(1, 0.1, 1, 2))
    side.add(row(2, 0.5, 2, 2.5))
    side.add(RequestRow(id="R3", prompt_tokens=5, output_tokens=5, outcome="not_sent"))
    refusal: dict[str, Any] = {"outcome": "http_error", "tokens": 0, "first_token_ns": None}
    side.add(row(4, 0.6, 0.6, 0.6, **refusal))  # its prompt was not read
    found = side.figures()
    assert found is not None
    first, second = found.pop("series")
    assert (found["samples"], found["missed"]) == (3, 2)
    assert (found["running_mean"], found["running_max"], found["waiting_max"]) == (0.5, 1, 1)
    assert found["client_in_flight_mean"] == 1  # two and none
    assert (found["generation_tokens"], found["client_generation_tokens"]) == (22, 22)
    assert (found["prompt_tokens"], found["client_prompt_tokens"]) == (14, 14)
    assert found["ttft_mean_ms"] == pytest.approx(1000)
    assert found["client_ttft_from_send_mean_ms"] == pytest.approx(1200)
    assert (found["itl_mean_ms"], found["requests"]) == (None, None)
    assert first["client_in_flight"] == first["running"] + first["waiting"] == 2
    assert first["client_tokens_per_s"] == pytest.approx(first["tokens_per_s"]) == pytest.approx(1 / 1.1)
    assert second["t_s"] == 3
    assert second["client_tokens_per_s"] == second["tokens_per_s"] == 21 / 2


def test_a_server_that_said_nothing_has_no_figures() -> None:
    assert ServerSide([]).figures() is None
    assert ServerSide([ServerSample(t_ns=0, running=1)]).figures() is None


def test_a_run_beside_the_mocks_own_metrics(server: MockServer, tmp_path: Path) -> None:
    """Both count the same tokens and nothing that came before; the summary is rebuilt with the same bytes."""
    command = ["run", "--num-prompts", "12", "--random-input-len", "6", "--random-output-len", "15"]
    command += ["--request-rate", "20", "--base-url", server.url, "--out", "run", "--num-warmups", "2"]
    result = tokentick(*command, "--scrape", "--scrape-interval", "0.2", cwd=tmp_path)
    assert result.returncode in (0, 4), result.stderr  # 4 on a busy machine
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    found = summary["server"]
    assert (found["generation_tokens"], found["client_generation_tokens"]) == (180, 180)
    assert (found["prompt_tokens"], found["client_prompt_tokens"]) == (72, 72)
    assert found["requests"] == 12
    assert found["samples"] + found["missed"] >= 4
    assert found["ttft_mean_ms"] == pytest.approx(found["client_ttft_from_send_mean_ms"], abs=100)
    assert sum(interval["t_s"] > 0 for interval in found["series"]) == len(found["series"]) <= 20
    assert "output tokens 180 (client 180)" in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 80
    before = (tmp_path / "run" / "summary.json").read_bytes()
    (tmp_path / "run" / "summary.json").unlink()
    again = tokentick("report", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    assert "until s" in again.stdout
    first, *_, last = json_lines(tmp_path / "run" / "server_metrics.jsonl")
    assert first["t_ns"] < 0 < last["t_ns"]  # type: ignore[operator]
    assert Run(tmp_path / "run").info.config.extra["scrape"]["url"] == f"{server.url}/metrics"


def test_several_workers_are_scraped_beside_by_the_leader(server: MockServer, tmp_path: Path) -> None:
    command = ["run", "toy", "--request-rate", "30", "--workers", "2", "--base-url", server.url]
    result = tokentick(*command, "--out", "run", "--scrape", "--scrape-interval", "0.2", cwd=tmp_path)
    assert result.returncode in (0, 4), result.stderr
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["server"]
    assert found["generation_tokens"] == found["client_generation_tokens"] > 0


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (plain(404), "HTTP 404"),
        (plain(501, b'{"error":{"message":"start it with --metrics"}}'), "start it with --metrics"),
        (plain(200, b"python_info 1.0\n"), "none of the metrics"),
    ],
)
async def test_a_server_without_metrics_gets_one_note(tmp_path: Path, page: bytes, why: str) -> None:
    """The run is what it would be without."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        server.pages["/metrics"] = page
        code, printed, err = await tokentick_run(
            ledger(tmp_path, [0, 100]), "--base-url", url(server), "--out", out, "--scrape"
        )
    assert code == 0, err
    (note,) = (note for note in Run(out).info.notes if "server metrics" in note)
    assert why in note
    assert why in " ".join(printed.split())
    assert json.loads((out / "summary.json").read_text())["server"] is None
    assert not (out / "server_metrics.jsonl").exists()


async def test_llama_cpps_figures_are_set_beside(tmp_path: Path) -> None:
    """What it does not tell is left out."""
    out = tmp_path / "run"

    async def counted(request: Request, writer: asyncio.StreamWriter) -> None:
        await quick(request, writer)
        server.pages["/metrics"] = plain(200, LLAMA_CPP % (5 * len(server.posts), 2 * len(server.posts)))

    async with scripted_server(counted) as server:
        server.pages["/metrics"] = plain(200, LLAMA_CPP % (0, 0))
        code, printed, err = await tokentick_run(
            ledger(tmp_path, [0, 100, 300]), "--base-url", url(server), "--out", out, "--scrape"
        )
    assert code == 0, err
    found = json.loads((out / "summary.json").read_text())["server"]
    assert (found["generation_tokens"], found["client_generation_tokens"]) == (6, 6)
    assert (found["waiting_max"], found["kv_usage_max"], found["ttft_mean_ms"]) == (2, None, None)
    assert "output tokens 6 (client 6)" in printed


async def test_metrics_that_stop_answering_are_missed_and_nothing_else(tmp_path: Path) -> None:
    """The first answer comes, no other does: requests are on time, what was missed is counted."""
    asked: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"GET /metrics" in head:
                asked.append(1)
                if len(asked) > 1:
                    await asyncio.sleep(60)
                writer.write(plain(200, LLAMA_CPP % (0, 0)))
            else:
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                await reader.readexactly(length)
                writer.write(answered(5, 2))

    out = tmp_path / "run"
    words = ["--no-preflight", "--scrape", "--scrape-interval", "0.1", "--out", out]
    async with raw_server(handle) as port:
        code, _, err = await tokentick_run(
            ledger(tmp_path, [0, 200, 400, 600]), "--base-url", f"http://127.0.0.1:{port}", *words
        )
    assert code in (0, 4), err
    rows = list(Run(out).rows())
    assert [row.outcome for row in rows] == ["completed"] * 4
    assert max((row.sent_ns or 0) - (row.arrival_ns or 0) for row in rows) < S // 10  # an answer may take 2 s
    samples = json_lines(out / "server_metrics.jsonl")
    assert "missed" not in samples[0]
    assert all(sample["error"] for sample in samples[1:])
    assert sum(sample["missed"] for sample in samples[1:]) >= 5


async def test_a_sample_that_the_end_of_the_run_overtakes_is_not_missed(tmp_path: Path) -> None:
    """The one after it comes at once, and has all that it would have had."""
    asked: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"GET /metrics" in head:
                asked.append(1)
                if len(asked) == 2:
                    await asyncio.sleep(60)
                writer.write(plain(200, LLAMA_CPP % (0, 0)))
            else:
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                await reader.readexactly(length)
                await asyncio.sleep(0.8)
                writer.write(answered(5, 2))

    out = tmp_path / "run"
    words = ["--no-preflight", "--scrape", "--scrape-interval", "0.6", "--out", out]
    async with raw_server(handle) as port:
        code, _, err = await tokentick_run(
            ledger(tmp_path, [0]), "--base-url", f"http://127.0.0.1:{port}", *words
        )
    assert code in (0, 4), err
    samples = json_lines(out / "server_metrics.jsonl")
    assert len(asked) == 3
    assert [sample.get("missed", 0) for sample in samples] == [0, 0]


async def test_an_interval_without_samples_is_refused(tmp_path: Path) -> None:
    """Rather than passed over."""
    words = ["--base-url", "http://127.0.0.1:9", "--scrape-interval", "2"]
    code, _, err = await tokentick_run(ledger(tmp_path, [0]), *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "--scrape-interval" in err


async def test_a_password_in_the_url_is_written_nowhere(tmp_path: Path) -> None:
    """Nor shown: the address of the metrics may have a login of its own."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        where = f"http://watcher:hunter2hunter2@127.0.0.1:{server.port}/metrics?token=tok-123456"
        _, printed, err = await tokentick_run(
            ledger(tmp_path, [0]), "--base-url", url(server), "--out", out, "--scrape", where
        )
    written = "".join(file.read_text() for file in out.iterdir()) + printed + err
    assert "hunter2" not in written
    assert "tok-123456" not in written


async def test_a_token_in_the_path_is_not_in_what_went_wrong(tmp_path: Path) -> None:
    """A server that takes the question and says nothing: its address is told without the token."""
    out = tmp_path / "run"

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw_server(silent) as port, scripted_server(quick) as server:
        where = f"http://127.0.0.1:{port}/metrics?token=tok-123456"
        code, _, err = await tokentick_run(
            ledger(tmp_path, [0]), "--base-url", url(server), "--out", out, "--scrape", where
        )
    assert code in (0, 4), err
    assert "no server metrics" in err
    assert "tok-123456" not in err + "".join(file.read_text() for file in out.iterdir())


@pytest.mark.parametrize("where", ["user:hunter2@host/metrics", "http://[hunter2"])
def test_a_place_that_is_none_is_refused_without_showing_it(where: str) -> None:
    """One line; what was given can hold a password."""
    with pytest.raises(InputError) as caught:
        parse_scrape(where, 1.0, parse_target("http://llm.example"), {})
    assert "--scrape" in str(caught.value)
    assert "hunter2" not in str(caught.value)
