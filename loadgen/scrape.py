"""A server's own metrics, sampled while it is measured.

Over a connection of its own, one small question in each interval, and never in the way of what is timed:
tokens are dated by the kernel meanwhile, and an answer takes a tenth of a millisecond to read. That is why
it is read by the few lines below: the parser of prometheus-client makes an object of every line and takes
fifty times as long, during which nothing would be sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ledgers.errors import InputError, TargetError
from ledgers.rows import encode
from ledgers.server_metrics import ServerSample
from ledgers.units import NS_PER_S
from loadgen.server_facts import Preflight, Questions
from loadgen.target import Target, find_address, parse_target
from loadgen.transport import Transport

AUTO = "auto"
LEAST_INTERVAL_S = 0.1  # more would be a load of its own
_PATH = "/metrics"
_ANSWER_S = 2.0
_PREFIXES = (b"vllm:", b"llamacpp:", b"sglang:")
# What servers call it; of several names for one thing the first that a server has. The mock has vLLM's.
_NAMES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "llamacpp:requests_processing", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "llamacpp:requests_deferred", "sglang:num_queue_reqs"),
    "kv_usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",  # older
        "llamacpp:kv_cache_usage_ratio",
        "sglang:token_usage",
    ),
    "prompt_tokens_total": (
        "vllm:prompt_tokens_total",
        "llamacpp:prompt_tokens_total",
        "sglang:prompt_tokens_total",
    ),
    "generation_tokens_total": (
        "vllm:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
        "sglang:generation_tokens_total",
    ),
    "requests_total": ("vllm:request_success_total", "sglang:num_requests_total"),
    "preemptions_total": ("vllm:num_preemptions_total",),
}
_HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "itl": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",  # before 0.11
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",  # older
    ),
    "queue": ("vllm:request_queue_time_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
}
for _field, _names in _HISTOGRAMS.items():
    _NAMES[f"{_field}_sum_s"] = tuple(f"{name}_sum" for name in _names)
    _NAMES[f"{_field}_count"] = tuple(f"{name}_count" for name in _names)
_KNOWN = frozenset(name.encode() for names in _NAMES.values() for name in names)
_AVERAGED = ("kv_usage",)  # over engines; all else is summed


class Scrape(msgspec.Struct, frozen=True):
    """What to ask, how often, and with which headers: a key is for its own server only."""

    target: Target
    path: str
    interval_s: float
    headers: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"{self.target.url}{self.path}"


def parse_scrape(where: str, interval_s: float, target: Target, headers: Mapping[str, str]) -> Scrape:
    """`auto` is /metrics at the measured server. InputError if it is neither that nor a URL."""
    plain = {name: value for name, value in headers.items() if name in ("User-Agent", "Accept-Encoding")}
    plain["Accept"] = "text/plain"
    if interval_s < LEAST_INTERVAL_S:
        raise InputError(f"--scrape-interval {interval_s:g}: at least {LEAST_INTERVAL_S:g} s")
    if where == AUTO:
        return Scrape(target, _PATH, interval_s, {**headers, **plain})
    if "://" not in where:
        # What was given is not shown: it can hold a password.
        raise InputError("--scrape: expected auto or http://HOST[:PORT]/PATH")
    try:
        url = urlsplit(where)
    except ValueError:
        raise InputError("--scrape: not a URL") from None
    query = f"?{url.query}" if url.query else ""
    asked = parse_target(f"{url.scheme}://{url.netloc}", "--scrape")
    if asked.basic_auth is not None:
        plain["Authorization"] = f"Basic {asked.basic_auth}"
    elif (asked.scheme, asked.host, asked.port) == (target.scheme, target.host, target.port):
        plain = {**headers, **plain}
    path = url.path if url.path not in ("", "/") else _PATH
    return Scrape(asked, path + query, interval_s, plain)


def metrics_in(body: bytes) -> dict[str, float]:
    """What we know of a text in Prometheus' format, by neutral names."""
    found: dict[bytes, list[float]] = {}
    for line in body.split(b"\n"):
        if line.startswith(_PREFIXES):
            brace = line.find(b"{")
            name = line[:brace] if brace > 0 else line.split(b" ", 1)[0]
            if name in _KNOWN and (value := _value(line)) is not None:
                found.setdefault(name, []).append(value)
    values: dict[str, float] = {}
    for field, names in _NAMES.items():
        series = next((found[name.encode()] for name in names if name.encode() in found), None)
        if series is not None:
            values[field] = sum(series) / (len(series) if field in _AVERAGED else 1)
    return values


def _value(line: bytes) -> float | None:
    """What stands behind the name and its labels; a time stamp may follow."""
    with suppress(ValueError, IndexError):
        value = float(line[line.rfind(b"}") + 1 :].split()[0 if b"}" in line else 1])
        if isfinite(value):
            return value
    return None


class Scraper:
    """Asks before t0, in every interval from then on, and once more at the end."""

    def __init__(self, scrape: Scrape, asking: Preflight) -> None:
        """`asking` says how to ask the measured server."""
        self.notes: list[str] = []  # why there is nothing
        self._scrape = scrape
        self._asking = asking._replace(
            target=scrape.target, headers=scrape.headers, timeout_s=min(asking.timeout_s, _ANSWER_S)
        )
        self._write: Callable[[bytes], None] = lambda line: None
        self._t0_ns = self._due_ns = 0
        self._interval_ns = round(scrape.interval_s * NS_PER_S)
        self._before: ServerSample | None = None
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._under_way = False  # a sample has been asked for, and is not there

    async def open(self) -> None:
        """Take the sample from which all counts. A server that has no metrics is noted, and left alone."""
        asking = self._asking
        try:
            address = await find_address(asking.target, asking.timeout_s)
            tls = asking.target.tls(insecure=asking.insecure, ca_file=asking.ca_file)
            self._transport = Transport(asking.target, address, tls=tls, connect_timeout_s=asking.timeout_s)
            self._questions = Questions(asking, self._transport)
            self._before = await self._sample()
        except TargetError as error:
            self.notes.append(f"no server metrics: {asking.short(str(error))}")
            return
        if self._before.error is not None:
            url = asking.scrub(self._scrape.url)
            self.notes.append(f"no server metrics: {url}: {self._before.error}")

    def start(self, t0_ns: int, write: Callable[[bytes], None]) -> None:
        """Times count from `t0_ns` (monotonic); `write` gets each sample as a line."""
        self._t0_ns, self._write = t0_ns, write
        self._due_ns = t0_ns + self._interval_ns
        if self._before is not None and not self.notes:
            self._append(self._before)
            self._task = asyncio.create_task(self._go_on())

    async def finish(self) -> None:
        """One more sample, with all that the run did. InputError if one could not be written."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._under_way:  # the last one takes its place
            self._due_ns += self._interval_ns
        self._catch_up()
        self._append(await self._sample())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.close()

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(max(0, self._due_ns - time.monotonic_ns()) / NS_PER_S)
            self._under_way = True
            self._append(await self._sample())
            self._under_way = False
            self._due_ns += self._interval_ns
            self._catch_up()

    def _catch_up(self) -> None:
        """Note the samples that were due while an answer did not come, and go on as if they were taken."""
        late = 1 + (time.monotonic_ns() - self._due_ns) // self._interval_ns
        if late > 0:
            self._append(ServerSample(t_ns=self._due_ns, missed=late, error="no answer to the one before"))
            self._due_ns += self._interval_ns * late

    async def _sample(self) -> ServerSample:
        """What the server says now. `t_ns` is on the monotonic clock until it is written."""
        asked_ns = time.monotonic_ns()
        try:
            answer = await self._questions.ask("GET", self._scrape.path, within_s=_ANSWER_S)
        except TargetError as error:
            return ServerSample(t_ns=asked_ns, missed=1, error=self._asking.short(str(error)))
        took_ns = time.monotonic_ns() - asked_ns
        if answer.status != 200:
            return ServerSample(t_ns=asked_ns, missed=1, error=self._questions.reason(answer))
        values: dict[str, Any] = metrics_in(answer.body)
        if not values:
            return ServerSample(t_ns=asked_ns, missed=1, error="none of the metrics that we know")
        return ServerSample(t_ns=asked_ns, took_ns=took_ns, **values)

    def _append(self, sample: ServerSample) -> None:
        sample.t_ns -= self._t0_ns
        self._write(encode(sample) + b"\n")
