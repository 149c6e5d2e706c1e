"""GET /metrics: the server's metrics as Prometheus reads them.

All numbers are taken at one instant. Their text is made metric by metric, and between two of them the event
loop may go on: a scrape must not make a tick late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.utils import floatToGoString

from mock_server.connections import ConnectionCounts
from mock_server.engine import Engine
from mock_server.metrics import ALIASES, HISTOGRAMS, Histogram, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name", "engine")


class Exposition:
    """Reads what is so now from the engine, and all else from the metrics."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        model: str,
        cut_off: Callable[[], int],
        connections: ConnectionCounts,
    ) -> None:
        """`cut_off` says how many readers were cut off so far."""
        self._engine = engine
        self._metrics = metrics
        self._cut_off = cut_off
        self._connections = connections
        self._labels = (model, "0")
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    async def handle(self, _: web.Request) -> web.Response:
        pieces = []
        for family in self._families():
            pieces.append(_text(family))
            await asyncio.sleep(0)
        return web.Response(body=b"".join(pieces), headers={"Content-Type": CONTENT_TYPE})

    def _families(self) -> Iterator[Metric]:
        metrics, labels = self._metrics, self._labels
        known = {name: histogram.copy() for name, histogram in metrics.histograms.items()}
        known |= {alias: known[name] for alias, name in ALIASES.items()}
        at_once = [*self._gauges(), *self._infos(), *self._counters()]
        yield from at_once
        for name, histogram in known.items():
            yield _histogram(name, histogram, labels)
        yield from self._process.collect()

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        kv = engine.scheduler.kv
        running = sum(job.phase in ("prefill", "ready") for job in engine.jobs.values())
        for name, text, value in (
            ("vllm:num_requests_running", "Requests in prefill or decode.", running),
            (
                "vllm:num_requests_waiting",
                "Requests received and not admitted yet.",
                len(engine.jobs) - running,
            ),
            ("vllm:kv_cache_usage_perc", "KV tokens held over the budget; 1 is full.", kv.cached / kv.budget),
            (
                "tokentick_kv_reserved_perc",
                "KV tokens reserved, which bounds admission, over the budget; 1 is full.",
                kv.reserved / kv.budget,
            ),
            ("tokentick_connections_open", "Connections that are open.", self._connections.open),
        ):
            yield _single(GaugeMetricFamily(name, text, labels=LABELS), self._labels, value)

    def _infos(self) -> Iterator[Metric]:
        """What vLLM says in labels. A block of the KV cache is one token here."""
        cache = {
            "block_size": "1",
            "num_gpu_blocks": str(self._engine.scheduler.kv.budget),
            "cache_dtype": "auto",
            "enable_prefix_caching": "False",
            "engine": "0",
        }
        text = "The KV cache: its budget in blocks of one token."
        yield _single(
            GaugeMetricFamily("vllm:cache_config_info", text, labels=[*cache]), [*cache.values()], 1
        )
        lora = {"max_lora": "0", "waiting_lora_adapters": "", "running_lora_adapters": ""}
        text = "LoRA adapters in use, of which there are none; the value is the time."
        family = GaugeMetricFamily("vllm:lora_requests_info", text, labels=[*lora])
        yield _single(family, lora.values(), time.time())

    def _counters(self) -> Iterator[Metric]:
        metrics, labels = self._metrics, self._labels
        for name, text, value in (
            (
                "vllm:prompt_tokens",
                "Tokens of prompts that were prefilled to their end.",
                metrics.prompt_tokens,
            ),
            ("vllm:generation_tokens", "Tokens emitted.", metrics.generation_tokens),
            ("vllm:num_preemptions", "Preemptions, of which there are none here.", 0),
            ("vllm:prefix_cache_queries", "Tokens looked up in a prefix cache, which is not simulated.", 0),
            ("vllm:prefix_cache_hits", "Tokens found in a prefix cache, which is not simulated.", 0),
            ("tokentick_ticks", "Ticks that ran and were not idle.", metrics.ticks),
            ("tokentick_cut_off", "Readers cut off because they were too far behind.", self._cut_off()),
        ):
            yield _single(CounterMetricFamily(name, text, labels=LABELS), labels, value)
        for name, text, label, counts in (
            (
                "vllm:request_success",
                "Requests that were let into the queue and have ended, by how.",
                "finished_reason",
                metrics.finished,
            ),
            ("tokentick_requests", "Rows of the served ledger, by outcome.", "outcome", metrics.outcomes),
            (
                "tokentick_faults",
                "Requests that a fault on demand struck, by its kind.",
                "fault",
                metrics.faults,
            ),
            (
                "tokentick_connections_closed",
                "Connections closed by the server itself: one too many, half a request, or idle too long.",
                "reason",
                {reason: getattr(self._connections, reason) for reason in ("too_many", "too_slow", "idle")},
            ),
        ):
            family = CounterMetricFamily(name, text, labels=[*LABELS, label])
            for kind, count in counts.items():
                _single(family, [*labels, kind], count)
            yield family


def _single(
    family: CounterMetricFamily | GaugeMetricFamily, labels: Iterable[str], value: float
) -> CounterMetricFamily | GaugeMetricFamily:
    family.add_metric(list(labels), value)
    return family


def _histogram(name: str, histogram: Histogram, labels: Iterable[str]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, HISTOGRAMS[ALIASES.get(name, name)].text, labels=LABELS)
    marks = [*map(floatToGoString, histogram.bounds), "+Inf"]
    counts = zip(marks, map(float, histogram.cumulative()), strict=True)
    family.add_metric(list(labels), list(counts), histogram.sum)
    return family


class _Alone(NamedTuple):
    """One metric, where a registry is asked for."""

    family: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.family


def _text(family: Metric) -> bytes:
    return generate_latest(_Alone(family))
