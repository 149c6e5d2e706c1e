"""Ready-made edge traffic: each recipe provokes one behaviour of a server of a given size.

Pure: a recipe depends on how many requests, the seed and the hardware alone. The first line of its docstring
is what a user reads. What the hardware can do is what its tightest part can: prefill budget, decode slots, or
KV budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from random import Random
from typing import NamedTuple

from ledgers import draws
from ledgers.errors import InputError
from ledgers.settings import Hardware
from ledgers.units import NS_PER_S, ceil_div


class Made(NamedTuple):
    """A request of a recipe."""

    arrival_ns: int
    class_: str
    prompt_tokens: int
    output_tokens: int


class Lengths(NamedTuple):
    """A request before it has a time."""

    class_: str
    prompt: int
    output: int


Make = Callable[[int, int, Hardware], Iterable[Made]]


class Recipe(NamedTuple):
    """What makes the requests, and the flags of `tokentick run` without which they are only half of it."""

    make: Make
    flags: Callable[[Hardware], str] | None = None

    @property
    def provokes(self) -> str:
        return (self.make.__doc__ or "").strip().partition("\n")[0]


def long_first(n: int, seed: int, hardware: Hardware) -> Iterator[Made]:
    """One long prompt, then nine short ones that wait for a prefill not theirs: head-of-line blocking.

    The short ones come while the long one is prefilled, and the next round when all work should be done.
    """
    random = Random(f"{seed}:long-first")
    budget, memory = hardware.prefill_tokens_per_tick, hardware.kv_budget_tokens
    long = _fitting(hardware, "long", min(20 * budget, 3 * memory // 4), 4)
    short = _fitting(hardware, "short", budget // 8, 4)
    round_ns = 2 * _least_ns([long, *[short] * 9], hardware)
    prefill_ns = ceil_div(long.prompt, budget) * hardware.tick_ns
    for first in range(0, n, 10):
        begin = first // 10 * round_ns
        yield _made(begin, long)
        shorts = min(9, n - first - 1)
        yield from (_made(begin + at, short) for at in _sorted_within(random, shorts, prefill_ns))


def bursts(n: int, seed: int, hardware: Hardware) -> Iterator[Made]:
    """Nothing for a while, then dozens within a second: a low mean rate, and a queue all at once.

    A burst has 24 to 72 requests, whose prompts take about three seconds to prefill, and short outputs; the
    silence after it is drawn, and long enough to work it off.
    """
    random = Random(f"{seed}:bursts")
    prompt = 3 * NS_PER_S * hardware.prefill_tokens_per_tick // (48 * hardware.tick_ns)
    begin, left = 0, n
    while left:
        size = min(left, _whole(random, 24, 72))
        burst = [
            _fitting(hardware, "burst", _whole(random, prompt // 2, 3 * prompt // 2), _whole(random, 4, 32))
            for _ in range(size)
        ]
        times = _sorted_within(random, size, NS_PER_S)
        yield from (_made(begin + at, lengths) for at, lengths in zip(times, burst, strict=True))
        silence = _least_ns(burst, hardware) * (1 + draws.exponential(random))
        begin, left = begin + NS_PER_S + round(silence), left - size


def mixed_lengths(n: int, seed: int, hardware: Hardware) -> Iterator[Made]:
    """Four short chats to one long job: batches wait for their longest, one percentile hides two classes.

    Poisson arrivals at seven tenths of what the hardware can do.
    """
    random = Random(f"{seed}:mixed-lengths")
    budget = hardware.prefill_tokens_per_tick

    def draw() -> Lengths:
        if random.random() < 0.8:
            return _fitting(hardware, "short", _whole(random, 1, budget // 8), _whole(random, 1, 16))
        prompt, output = _whole(random, budget, 4 * budget), _whole(random, 64, 256)
        return _fitting(hardware, "long", prompt, output)

    requests = [draw() for _ in range(n)]
    return _poisson(random, requests, _least_ns(requests, hardware) / 0.7)


def kv_limit(n: int, seed: int, hardware: Hardware) -> Iterator[Made]:
    """Reserves that add up to about the KV budget: slots are free, and yet requests are not admitted.

    Each takes 1 to 1.5 times the budget's share of a slot, every sixteenth eight shares, at most all of it:
    for that one the memory has to run nearly empty while others wait behind it. Outputs are so long that
    memory is the bottleneck and not the prefill. Poisson arrivals at all that the memory can do.
    """
    random = Random(f"{seed}:kv-limit")
    memory, budget = hardware.kv_budget_tokens, hardware.prefill_tokens_per_tick
    share = max(2, memory // hardware.decode_slots)
    longest = max(1, 2 * memory // budget)

    def draw(number: int) -> Lengths:
        large = number % 16 == 15
        reserve = min(memory, 8 * share if large else _whole(random, share, 3 * share // 2))
        output = max(1, min(reserve // 2, longest))
        return Lengths("large" if large else "usual", reserve - output, output)

    requests = [draw(number) for number in range(n)]
    return _poisson(random, requests, _least_ns(requests, hardware))


def impatient(n: int, seed: int, hardware: Hardware) -> Iterator[Made]:
    """Half more than the hardware can do, from clients that give up and try again: work for nobody.

    A planned request cannot say when its client loses patience: the flags of `tokentick run` say that.
    """
    random = Random(f"{seed}:impatient")
    budget = hardware.prefill_tokens_per_tick
    requests = [
        _fitting(hardware, "impatient", _whole(random, budget // 8, budget // 2), _whole(random, 8, 32))
        for _ in range(n)
    ]
    return _poisson(random, requests, _least_ns(requests, hardware) / 1.5)


def _impatient_flags(hardware: Hardware) -> str:
    patience = 50 * hardware.tick_ns / NS_PER_S
    waits = f"--first-token-timeout {patience:g} --cancel-rate 0.3 --cancel-after {2 * patience:g}"
    return f"{waits} --client-retries 3"


RECIPES: dict[str, Recipe] = {
    "long-first": Recipe(long_first),
    "bursts": Recipe(bursts),
    "mixed-lengths": Recipe(mixed_lengths),
    "kv-limit": Recipe(kv_limit),
    "impatient": Recipe(impatient, _impatient_flags),
}


def make_requests(name: str, n: int, seed: int, hardware: Hardware) -> list[Made]:
    """The requests of a recipe, in order of time. InputError if the hardware can hold none."""
    if hardware.kv_budget_tokens < 2:
        raise InputError(f"--recipe {name}: a request needs 2 tokens, the KV budget is less")
    return list(RECIPES[name].make(n, seed, hardware))


def _fitting(hardware: Hardware, class_: str, prompt: int, output: int) -> Lengths:
    """Lengths of at least 1 that the KV budget can hold: the output may take half of it."""
    output = max(1, min(output, hardware.kv_budget_tokens // 2))
    return Lengths(class_, max(1, min(prompt, hardware.kv_budget_tokens - output)), output)


def _made(arrival_ns: int, lengths: Lengths) -> Made:
    return Made(arrival_ns, *lengths)


def _whole(random: Random, least: int, most: int) -> int:
    """Both ends included, which may be one."""
    return least + int(random.random() * (max(least, most) - least + 1))


def _sorted_within(random: Random, count: int, span_ns: int) -> list[int]:
    """So many times, the first at 0."""
    return sorted([0, *(int(random.random() * span_ns) for _ in range(count - 1))])[:count]


def _least_ns(requests: Iterable[Lengths], hardware: Hardware) -> int:
    """How long the hardware is busy with them at least: what its tightest part takes."""
    budget = hardware.prefill_tokens_per_tick
    prefill = decode = held = 0
    for it in requests:
        prefill += it.prompt
        decode += it.output
        held += (it.prompt + it.output) * (it.output + ceil_div(it.prompt, budget))
    parts = ((prefill, budget), (decode, hardware.decode_slots), (held, hardware.kv_budget_tokens))
    return max(ceil_div(work, per_tick) for work, per_tick in parts) * hardware.tick_ns


def _poisson(random: Random, requests: Sequence[Lengths], span_ns: float) -> Iterator[Made]:
    """Requests whose gaps, exponential, fill the span on average."""
    gap_ns = span_ns / max(1, len(requests))
    gaps = (round(gap_ns * draws.exponential(random)) for _ in requests)
    times = islice(accumulate(gaps, initial=0), len(requests))
    return (_made(at, lengths) for at, lengths in zip(times, requests, strict=True))
