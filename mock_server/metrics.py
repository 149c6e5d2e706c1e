"""What the server counts of itself: vLLM's metrics, by its names and buckets, and a few of our own.

Fed by each tick, by each write and by the row of each request that ended. Nothing is done per token: the
times of a write come as lists and are sorted into buckets together. Counts grow as long as the process lives:
a reset of the ledger does not take them back, for Prometheus would read that as a restart. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ledgers.metrics import e2e_ns, queue_delay_ns, tpot_ns
from ledgers.rows import FAILURES, OUTCOMES, RequestRow, TickRow
from ledgers.units import NS_PER_S, ceil_div

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
LATE_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
STEP_TOKENS = tuple(float(n) for n in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
FINISH_REASONS = ("stop", "length", "abort", "error")


class Definition(NamedTuple):
    """What a histogram is of, in seconds or in tokens. Without bounds it has those of lengths."""

    text: str
    bounds: Sequence[float] = ()
    seconds: bool = True


COMPLETED = "Of each completed request: "
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": Definition(
        "From the receipt of a request, its queueing included, to the write of its first token.",
        FIRST_TOKEN_S,
    ),
    "vllm:inter_token_latency_seconds": Definition(
        "From the write of a token to that of the next one of the same request.", TOKEN_S
    ),
    "vllm:request_time_per_output_token_seconds": Definition(
        COMPLETED + "first to last token, over its tokens but one; 0 for a single token.", TOKEN_S
    ),
    "vllm:e2e_request_latency_seconds": Definition(COMPLETED + "receipt to last token.", REQUEST_S),
    "vllm:request_queue_time_seconds": Definition(
        COMPLETED + "receipt to the tick that starts its prefill.", REQUEST_S
    ),
    "vllm:request_inference_time_seconds": Definition(
        COMPLETED + "the tick that starts its prefill to its last token.", REQUEST_S
    ),
    "vllm:request_prefill_time_seconds": Definition(
        COMPLETED + "the tick that starts its prefill to its first token.", REQUEST_S
    ),
    "vllm:request_decode_time_seconds": Definition(COMPLETED + "first to last token.", REQUEST_S),
    "vllm:request_prompt_tokens": Definition(COMPLETED + "tokens of its prompt.", seconds=False),
    "vllm:request_generation_tokens": Definition(COMPLETED + "tokens generated.", seconds=False),
    "vllm:request_params_max_tokens": Definition(COMPLETED + "tokens it asked for.", seconds=False),
    "vllm:request_max_num_generation_tokens": Definition(
        COMPLETED + "the most tokens that one of its choices has.", seconds=False
    ),
    "vllm:iteration_tokens_total": Definition(
        "Of each tick: tokens emitted, and prompt tokens of the requests whose prefill ended in it.",
        STEP_TOKENS,
        seconds=False,
    ),
    "tokentick_tick_lateness_seconds": Definition("How late each tick ran.", LATE_S),
}
ALIASES = {  # what others call the same
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",  # before 0.11
    "vllm:max_num_generation_tokens": "vllm:request_max_num_generation_tokens",  # other simulators
}


def length_bounds(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 and so on, as far as a length can be `most`."""
    powers = (10**exponent for exponent in range(len(str(most))))
    return tuple(float(m * power) for power in powers for m in (1, 2, 5) if m * power <= most)


class Histogram:
    """How many values were no larger than each bound, and their sum.

    Values are in ns where `scale` is NS_PER_S, and bounds always in what is shown.
    """

    def __init__(self, bounds: Sequence[float], scale: int = 1) -> None:
        self.bounds = tuple(bounds)
        self.scale = scale
        self._edges = [bound * scale if scale == 1 else round(bound * scale) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self._sum: float = 0  # of integers where values are, so it is exact

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def add_all(self, values: Sequence[int]) -> None:
        """Sorted, a thousand values cost a few comparisons per bucket."""
        ordered = sorted(values)
        self._sum += sum(ordered)
        done = 0
        for place, edge in enumerate(self._edges):
            if done == len(ordered):
                return
            upto = bisect_right(ordered, edge, done)
            self._counts[place] += upto - done
            done = upto
        self._counts[-1] += len(ordered) - done

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum(self) -> float:
        return self._sum / self.scale

    def cumulative(self) -> list[int]:
        """How many are no larger than each bound, and at the end how many there are."""
        return list(accumulate(self._counts))

    def copy(self) -> Histogram:
        twin = Histogram(self.bounds, self.scale)
        twin._counts, twin._sum = self._counts.copy(), self._sum
        return twin


class Metrics:
    """All that only grows. What is so at this moment, nobody needs to tell: it is read from the engine."""

    def __init__(self, most_tokens: int) -> None:
        """`most_tokens`: how long a request can be, which vLLM calls the maximum model length."""
        lengths = length_bounds(most_tokens)
        self.histograms = {
            name: Histogram(known.bounds or lengths, NS_PER_S if known.seconds else 1)
            for name, known in HISTOGRAMS.items()
        }
        self.prompt_tokens = 0  # of prompts that were prefilled to their end
        self.generation_tokens = 0
        self.ticks = 0
        self.finished: Counter[str] = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.faults: Counter[str] = Counter()

    def add_tick(self, row: TickRow, prompt_tokens: int) -> None:
        self.ticks += 1
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += row.emitted
        self.histograms["vllm:iteration_tokens_total"].add(prompt_tokens + row.emitted)
        self.histograms["tokentick_tick_lateness_seconds"].add(row.late_ns or 0)

    def add_times(self, first_ns: list[int], gaps_ns: list[int]) -> None:
        self.histograms["vllm:time_to_first_token_seconds"].add_all(first_ns)
        self.histograms["vllm:inter_token_latency_seconds"].add_all(gaps_ns)

    def add_row(self, row: RequestRow) -> None:
        self.outcomes[row.outcome or "unfinished"] += 1
        if row.fault is not None:
            self.faults[row.fault.partition(":")[0]] += 1  # its kind: a client may name any parameters
        reason = finish_reason(row)
        if reason is not None:
            self.finished[reason] += 1
        if row.outcome == "completed":
            self._add_completed(row)

    def _add_completed(self, row: RequestRow) -> None:
        tpot = tpot_ns(row)
        self._observe("vllm:request_time_per_output_token_seconds", 0 if tpot is None else float(tpot))
        self._observe("vllm:e2e_request_latency_seconds", e2e_ns(row))
        self._observe("vllm:request_queue_time_seconds", queue_delay_ns(row))
        self._observe("vllm:request_inference_time_seconds", _since(row.last_token_ns, row.prefill_start_ns))
        self._observe("vllm:request_prefill_time_seconds", _since(row.first_token_ns, row.prefill_start_ns))
        self._observe("vllm:request_decode_time_seconds", _since(row.last_token_ns, row.first_token_ns))
        self._observe("vllm:request_prompt_tokens", row.prompt_tokens)
        self._observe("vllm:request_generation_tokens", row.tokens)
        self._observe("vllm:request_params_max_tokens", row.output_tokens)
        longest = ceil_div(row.tokens or 0, row.choices or 1)
        self._observe("vllm:request_max_num_generation_tokens", longest)

    def _observe(self, name: str, value: float | None) -> None:
        if value is not None:
            self.histograms[name].add(value)


def finish_reason(row: RequestRow) -> str | None:
    """As vLLM names ends; None for what it does not count either: what was never let into the queue."""
    if row.outcome == "completed":
        return row.finish_reason or "length"
    if row.outcome in ("cancelled", "unfinished"):
        return "abort"
    return "error" if row.outcome in FAILURES and row.ticks else None


def _since(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier
