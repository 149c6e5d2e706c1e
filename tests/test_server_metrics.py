"""GET /metrics of the mock server, held against its own served ledger, which knows each token's time."""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import MockServer, json_lines, serving
from tests.test_server import ask, read_all, send, state, wait_until

HARDWARE = "prefill_tokens_per_tick = 8\nkv_budget_tokens = 400\ndecode_slots = 4\ntick_s = 0.02\n"
# As vLLM has them.
FIRST_S = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
FIRST_S += [20.0, 40.0, 80.0, 160.0, 640.0, 2560.0]
TOKEN_S = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0]
TOKEN_S += [40.0, 80.0]
REQUEST_S = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0]
REQUEST_S += [480.0, 960.0, 1920.0, 7680.0]
LENGTHS = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]
STEP = [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0]


class Scraped:
    """What one scrape says."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def value(self, name: str, **labels: str) -> float:
        (found,) = (value for known, value in self.samples[name] if labels.items() <= known.items())
        return found

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values above 0 by one label."""
        return {labels[label]: value for labels, value in self.samples[name] if value}

    def histogram(self, name: str) -> tuple[list[float], list[float], float, float]:
        """Bounds without the infinite one, cumulative counts, sum and count."""
        buckets = [(labels["le"], value) for labels, value in self.samples[f"{name}_bucket"]]
        assert buckets[-1][0] == "+Inf"
        return (
            [float(le) for le, _ in buckets[:-1]],
            [count for _, count in buckets],
            self.value(f"{name}_sum"),
            self.value(f"{name}_count"),
        )


def scrape(server: MockServer) -> Scraped:
    status, body, headers = ask(server, "GET", "/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return Scraped(body.decode())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scraped, list[Any], list[Any]]]:
    """A few dozen requests over four slots: completed, left in the queue and in the stream, and too long."""
    path = tmp_path_factory.mktemp("metrics")
    (path / "hardware.toml").write_text(HARDWARE)
    arguments = ["--policy", "chunked", "--hardware", str(path / "hardware.toml"), "--record-tokens"]
    with serving(path / "served", *arguments, "--model", "mock") as server:
        whole = [
            threading.Thread(target=lambda n=n: read_all(send(server, request(n), version="1.0")))
            for n in range(30)
        ]
        leaving = [send(server, {"prompt": "time " * 7, "max_tokens": 300, "stream": True}) for _ in range(2)]
        wait_until(lambda: state(server)["tick"] >= 10)
        for thread in whole:
            thread.start()
        queued = [send(server, {"prompt": "time " * 9, "max_tokens": 80, "stream": True}) for _ in range(6)]
        too_long = json.dumps({"prompt": "time", "max_tokens": 400}).encode()
        assert [ask(server, "POST", "/v1/completions", too_long)[0] for _ in range(3)] == [400] * 3
        for client in (*leaving, *queued):
            client.close()
        for thread in whole:
            thread.join(60)
        wait_until(lambda: state(server)["idle"])
        scraped = scrape(server)
        yield scraped, json_lines(path / "served" / "requests.jsonl"), json_lines(path / "served/ticks.jsonl")


def request(number: int) -> dict[str, Any]:
    lengths = {"prompt": "time " * (1 + number % 11), "max_tokens": 1 + 3 * number % 23}
    return {**lengths, "stream": number % 5 != 0}


def expect(scraped: Scraped, name: str, bounds: list[float], values: Iterable[float]) -> None:
    """Every bucket, the count and the sum are those of the values."""
    values = list(values)
    counts = Counter(bisect_left(bounds, value) for value in values)
    cumulative = [sum(counts[i] for i in range(upto + 1)) for upto in range(len(bounds) + 1)]
    found_bounds, found, total, count = scraped.histogram(name)
    assert found_bounds == bounds
    assert found == cumulative
    assert count == len(values)
    assert total == pytest.approx(sum(values), rel=1e-9, abs=1e-9)


def seconds(later: int, earlier: int) -> float:
    return (later - earlier) / 1e9


def test_the_ledger_has_what_the_metrics_are_to_tell(served: tuple[Scraped, list[Any], list[Any]]) -> None:
    """Without cancelled and rejected requests, equal figures would prove little."""
    _, rows, _ = served
    outcomes = Counter(row["outcome"] for row in rows)
    assert (outcomes["completed"], outcomes["rejected"]) == (30, 3)
    assert outcomes["cancelled"] == 8
    cancelled = [row for row in rows if row["outcome"] == "cancelled"]
    assert any(row["tokens"] for row in cancelled)
    assert not all(row["tokens"] for row in cancelled)


def test_counters_are_those_of_the_served_ledger(served: tuple[Scraped, list[Any], list[Any]]) -> None:
    """Tokens by the ticks and by the rows, ends by reason and by outcome; no traffic of what is not there."""
    scraped, rows, ticks = served
    outcomes = Counter(row["outcome"] for row in rows)
    assert scraped.by("tokentick_requests_total", "outcome") == outcomes
    reasons = {"length": outcomes["completed"], "abort": outcomes["cancelled"]}
    assert scraped.by("vllm:request_success_total", "finished_reason") == reasons
    emitted = sum(tick["emitted"] for tick in ticks)
    assert scraped.value("vllm:generation_tokens_total") == emitted == sum(row["tokens"] for row in rows)
    prefilled = sum(row["prompt_tokens"] for row in rows if row["ticks"]["prefill_end"] is not None)
    assert scraped.value("vllm:prompt_tokens_total") == prefilled
    assert scraped.value("tokentick_ticks_total") == len(ticks)
    for name in ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits"):
        assert scraped.value(f"vllm:{name}_total", model_name="mock") == 0
    assert scraped.value("tokentick_cut_off_total") == 0


def test_times_of_tokens_are_those_of_the_served_ledger(
    served: tuple[Scraped, list[Any], list[Any]],
) -> None:
    """TTFT counts from the receipt, so the queue is in it; gaps are between writes, of cancelled ones too."""
    scraped, rows, _ = served
    began = [row for row in rows if row["first_token_ns"] is not None]
    first = [seconds(row["first_token_ns"], row["received_ns"]) for row in began]
    assert max(first) > 0.1  # somebody queued
    expect(scraped, "vllm:time_to_first_token_seconds", FIRST_S, first)
    gaps = [seconds(later, earlier) for row in began for earlier, later in pairwise(row["token_ns"])]
    expect(scraped, "vllm:inter_token_latency_seconds", TOKEN_S, gaps)
    expect(scraped, "vllm:time_per_output_token_seconds", TOKEN_S, gaps)


def test_times_of_requests_are_those_of_the_served_ledger(
    served: tuple[Scraped, list[Any], list[Any]],
) -> None:
    """Over the completed ones; queue and inference add up to E2E, prefill and decode to inference."""
    scraped, rows, _ = served
    done = [row for row in rows if row["outcome"] == "completed"]
    spans = {
        "e2e_request_latency": ("received_ns", "last_token_ns"),
        "request_queue_time": ("received_ns", "prefill_start_ns"),
        "request_inference_time": ("prefill_start_ns", "last_token_ns"),
        "request_prefill_time": ("prefill_start_ns", "first_token_ns"),
        "request_decode_time": ("first_token_ns", "last_token_ns"),
    }
    for name, (begin, end) in spans.items():
        values = [seconds(row[end], row[begin]) for row in done]
        expect(scraped, f"vllm:{name}_seconds", REQUEST_S, values)
    per_token = [
        seconds(row["last_token_ns"], row["first_token_ns"]) / max(1, row["tokens"] - 1) for row in done
    ]
    expect(scraped, "vllm:request_time_per_output_token_seconds", TOKEN_S, per_token)


def test_lengths_and_ticks_are_those_of_the_served_ledger(
    served: tuple[Scraped, list[Any], list[Any]],
) -> None:
    """The buckets of lengths end where requests do; a prompt counts in the tick that ends its prefill."""
    scraped, rows, ticks = served
    done = [row for row in rows if row["outcome"] == "completed"]
    for name, field in (
        ("request_prompt_tokens", "prompt_tokens"),
        ("request_generation_tokens", "tokens"),
        ("request_params_max_tokens", "output_tokens"),
        ("request_max_num_generation_tokens", "tokens"),
        ("max_num_generation_tokens", "tokens"),
    ):
        expect(scraped, f"vllm:{name}", LENGTHS, [row[field] for row in done])
    ended: Counter[int] = Counter()
    for row in rows:
        if row["ticks"]["prefill_end"] is not None:  # visible at the end of the tick, which begins the next
            ended[row["ticks"]["prefill_end"] - 1] += row["prompt_tokens"]
    expect(
        scraped,
        "vllm:iteration_tokens_total",
        STEP,
        [tick["emitted"] + ended[tick["tick"]] for tick in ticks],
    )
    late = [tick["late_ns"] / 1e9 for tick in ticks]
    bounds, *_ = scraped.histogram("tokentick_tick_lateness_seconds")
    expect(scraped, "tokentick_tick_lateness_seconds", bounds, late)


def test_names_types_and_labels_are_vllms(served: tuple[Scraped, list[Any], list[Any]]) -> None:
    """Dashboards and routers ask by them."""
    scraped, *_ = served
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    counters = ("prompt_tokens", "generation_tokens", "request_success", "num_preemptions")
    assert {scraped.types[f"vllm:{name}"] for name in gauges} == {"gauge"}
    assert {scraped.types[f"vllm:{name}"] for name in counters} == {"counter"}
    for name in (
        "vllm:num_requests_running",
        "vllm:prompt_tokens_total",
        "vllm:e2e_request_latency_seconds_sum",
    ):
        assert scraped.samples[name][0][0] == {"model_name": "mock", "engine": "0"}
    reasons = {labels["finished_reason"] for labels, _ in scraped.samples["vllm:request_success_total"]}
    assert {"stop", "length", "abort"} <= reasons
    assert scraped.value("vllm:cache_config_info", block_size="1", num_gpu_blocks="400") == 1
    assert "process_start_time_seconds" in scraped.types


def test_gauges_tell_what_is_so_now(tmp_path: Path) -> None:
    """One runs and holds its KV, one waits for the slot; when both have left, nothing is held."""
    (tmp_path / "one.toml").write_text(HARDWARE.replace("decode_slots = 4", "decode_slots = 1"))
    arguments = ["--policy", "immediate", "--hardware", str(tmp_path / "one.toml")]
    with serving(tmp_path / "served", *arguments) as server:
        clients = [send(server, {"prompt": "time time", "max_tokens": 350, "stream": True}) for _ in range(2)]
        wait_until(lambda: state(server)["in_flight"] == 2 and state(server)["kv_cached"] > 0)
        scraped = scrape(server)
        assert scraped.value("vllm:num_requests_running") == 1
        assert scraped.value("vllm:num_requests_waiting") == 1
        assert 0 < scraped.value("vllm:kv_cache_usage_perc") < 352 / 400
        assert scraped.value("tokentick_kv_reserved_perc") == 352 / 400
        for client in clients:
            client.close()
        wait_until(lambda: state(server)["idle"])
        scraped = scrape(server)
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert scraped.value(f"vllm:{name}") == 0


def test_a_reset_takes_no_count_back(server: MockServer) -> None:
    """A counter that falls would be read as a restart of the server."""
    body = json.dumps({"prompt": "time", "max_tokens": 3}).encode()
    assert ask(server, "POST", "/v1/completions", body)[0] == 200
    before = scrape(server).value("vllm:generation_tokens_total")
    wait_until(lambda: ask(server, "POST", "/mock/reset", b"")[0] == 200)
    assert ask(server, "POST", "/v1/completions", body)[0] == 200
    assert scrape(server).value("vllm:generation_tokens_total") == before + 3


def test_the_dashboard_asks_for_nothing_that_the_mock_does_not_have(
    served: tuple[Scraped, list[Any], list[Any]],
) -> None:
    """By name and by label; what is the mock's alone stands in a row of its own at the end."""
    scraped, *_ = served
    dashboard = json.loads((Path(__file__).parent.parent / "docs" / "grafana-dashboard.json").read_text())
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    place = next(i for i, panel in enumerate(dashboard["panels"]) if panel["title"] == rows[-1])
    ours = [panel for panel in dashboard["panels"][place:] if panel["type"] != "row"]
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    names = {name for expression in asked for name in re.findall(r"(?:vllm:|tokentick_)\w+", expression)}
    assert len(names) > 20
    for name in names:
        known = name in scraped.samples or name.removesuffix("_total") in scraped.types
        assert known, name
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            text = " ".join(target["expr"] for target in panel["targets"])
            assert ("tokentick_" in text) is (panel in ours), panel["title"]
            assert text.count('{model_name=~"$model_name"}') == len(re.findall(r"(?:vllm:|tokentick_)", text))


def test_tokens_of_one_chunk_are_no_time_apart(tmp_path: Path) -> None:
    """Three at a time: two gaps of nothing in each, as the ledger has them."""
    arguments = ["--tick", "0.02", "--hardware", "medium", "--tokens-per-chunk", "3", "--record-tokens"]
    with serving(tmp_path / "served", *arguments) as server:
        read_all(send(server, {"prompt": "time", "max_tokens": 12, "stream": True}, version="1.0"))
        wait_until(lambda: state(server)["idle"])
        scraped = scrape(server)
    (row,) = json_lines(tmp_path / "served" / "requests.jsonl")
    times: Any = row["token_ns"]
    gaps = [seconds(later, earlier) for earlier, later in pairwise(times)]
    assert gaps.count(0) == 8
    expect(scraped, "vllm:inter_token_latency_seconds", TOKEN_S, gaps)


def test_faults_and_failures_are_those_of_the_served_ledger(tmp_path: Path) -> None:
    """By kind, whatever their parameters; what a fault broke off ended in an error, a refusal did not."""
    words = [
        "error-event:after=2",
        "error-event:after=1",
        "http-503:retry_after=3",
        "http-503",
        "cut:after=1",
    ]
    with serving(tmp_path / "served", "--tick", "0.01", "--hardware", "medium") as server:
        for word in words:
            with suppress(ConnectionResetError):
                read_all(send(server, request(4), headers={"X-Mock-Fault": word}, version="1.0"))
        wait_until(lambda: state(server)["idle"])
        scraped = scrape(server)
    rows: list[Any] = json_lines(tmp_path / "served" / "requests.jsonl")
    kinds = Counter(row["fault"].partition(":")[0] for row in rows)
    assert (
        scraped.by("tokentick_faults_total", "fault") == kinds == {"error-event": 2, "http-503": 2, "cut": 1}
    )
    outcomes = Counter(row["outcome"] for row in rows)
    assert scraped.by("tokentick_requests_total", "outcome") == outcomes
    broken_off = [row for row in rows if row["outcome"] != "completed" and row["tokens"]]
    assert scraped.by("vllm:request_success_total", "finished_reason") == {"error": len(broken_off)}
    assert len(broken_off) == 3
