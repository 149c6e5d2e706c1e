"""The rules of docs/class-queues.md, read once more, as plainly as they stand there.

Slow and simple: lists, fractions of a second, everything looked up anew in each tick. Shares no code with the
scheduler, so that both have to be wrong in the same way to agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any


@dataclass
class Request:
    """A request and what has become of it."""

    id: str
    class_name: str | None
    arrival: Fraction  # all times in seconds
    prompt: int
    output: int
    cancel_tick: int | None = None
    number: int = -1
    state: str = "to come"  # queued, prefill, ready; completed, cancelled, or why it was rejected
    since: Fraction = Fraction(0)
    prefilled: int = 0
    emitted: int = 0
    received: int | None = None
    prefill_start: int | None = None
    prefill_end: int | None = None
    first_token: int | None = None
    last_token: int | None = None


@dataclass
class Setting:
    """The hardware, the limits and the classes: `classes` maps a name to its B, W, slots and priority."""

    tick: Fraction
    prefill_tokens_per_tick: int
    decode_slots: int
    kv_budget: int
    ageing: Fraction
    classes: dict[str, dict[str, Any]]  # the class "*" included; in the order of the file
    max_queue: int | None = None
    max_model_len: int | None = None


@dataclass
class Plain:
    """The state between two ticks, and the rows of those that have passed."""

    setting: Setting
    requests: list[Request]
    queues: dict[str, list[Request]] = field(default_factory=dict)
    rotations: dict[str, list[Request]] = field(default_factory=dict)
    batch: list[Request] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)

    def run(self, most_ticks: int) -> None:
        """Every tick from 0 until everything has ended, which must be before `most_ticks`."""
        for name in self.setting.classes:
            self.queues[name] = []
            self.rotations[name] = []
        tick = 0
        while self.batch or any(r.state in ("to come", "queued", "prefill", "ready") for r in self.requests):
            self.one_tick(tick)
            tick += 1
            assert tick <= most_ticks, "work that never ends"

    def class_of(self, request: Request) -> str:
        name = request.class_name
        return name if name is not None and name in self.setting.classes else "*"

    def reserved(self) -> int:
        held = [r for r in self.requests if r.state in ("prefill", "ready")]
        return sum(r.prompt + r.output for r in held)

    def order(self, request: Request) -> tuple[Fraction, Fraction, int]:
        """The smaller, the more urgent."""
        priority = self.setting.classes[self.class_of(request)]["priority"]
        return request.since - priority * self.setting.ageing, request.since, request.number

    def one_tick(self, k: int) -> None:
        self.arrivals(k)
        self.cancellations(k)
        emitted = self.decode(k)
        self.prefill_start(k)
        self.prefill_advance(k)
        self.record(k, emitted)

    def arrivals(self, k: int) -> None:
        now = k * self.setting.tick
        for request in self.requests:
            if request.state != "to come" or request.arrival > now:
                continue
            request.received = k
            request.number = self.requests.index(request)
            size = request.prompt + request.output
            limit = self.setting.max_model_len
            waiting = sum(len(queue) for queue in self.queues.values())
            if size > self.setting.kv_budget or (limit is not None and size > limit):
                request.state = "context_length_exceeded"
            elif self.setting.max_queue is not None and waiting >= self.setting.max_queue:
                request.state = "queue_full"
            else:
                request.state = "queued"
                request.since = now
                self.queues[self.class_of(request)].append(request)

    def cancellations(self, k: int) -> None:
        for request in self.requests:
            if request.cancel_tick != k or request.state not in ("queued", "prefill", "ready"):
                continue
            if request.state == "queued":
                self.queues[self.class_of(request)].remove(request)
            if request.state == "ready":
                self.rotations[self.class_of(request)].remove(request)
            request.state = "cancelled"

    def decode(self, k: int) -> int:
        taken: list[Request] = []
        for name, rules in self.setting.classes.items():  # reserved
            taken += self.rotations[name][: rules["reserved_slots"]]
            del self.rotations[name][: rules["reserved_slots"]]
        while len(taken) < self.setting.decode_slots:  # lent
            fronts = [rotation[0] for rotation in self.rotations.values() if rotation]
            if not fronts:
                break
            front = min(fronts, key=self.order)
            self.rotations[self.class_of(front)].remove(front)
            taken.append(front)
        for request in taken:
            request.emitted += 1
            if request.emitted == 1:
                request.first_token = k
            if request.emitted == request.output:
                request.last_token = k
                request.state = "completed"
            else:
                request.since = k * self.setting.tick
                self.rotations[self.class_of(request)].append(request)
        return len(taken)

    def prefill_start(self, k: int) -> None:
        if self.batch:
            return
        now = k * self.setting.tick
        formed = []
        for name, rules in self.setting.classes.items():
            queue = self.queues[name]
            if queue and (len(queue) >= rules["max_batch"] or now - queue[0].arrival >= rules["max_wait"]):
                formed.append(name)
        if not formed:
            return
        chosen = min(formed, key=lambda name: self.order(self.queues[name][0]))
        for request in list(self.queues[chosen][: self.setting.classes[chosen]["max_batch"]]):
            if self.reserved() + request.prompt + request.output > self.setting.kv_budget:
                break
            self.queues[chosen].remove(request)
            request.state = "prefill"
            request.prefill_start = k
            self.batch.append(request)

    def prefill_advance(self, k: int) -> None:
        left = self.setting.prefill_tokens_per_tick
        for request in self.batch:
            tokens = min(left, request.prompt - request.prefilled)
            request.prefilled += tokens
            left -= tokens
        if all(request.prefilled == request.prompt for request in self.batch):
            for request in self.batch:
                if request.state == "prefill":
                    request.state = "ready"
                    request.prefill_end = k + 1
                    request.since = (k + 1) * self.setting.tick
                    self.rotations[self.class_of(request)].append(request)
            self.batch = []

    def record(self, k: int, emitted: int) -> None:
        states = [request.state for request in self.requests]
        cached = sum(r.prefilled + r.emitted for r in self.requests if r.state in ("prefill", "ready"))
        row = (k, states.count("queued"), states.count("prefill"), states.count("ready"), emitted)
        self.rows.append((*row, self.reserved(), cached))


def most_ticks(setting: Setting, requests: list[Request]) -> int:
    """More than any schedule of these needs: one after another, each alone, after the last arrival."""
    longest_wait = max(rules["max_wait"] for rules in setting.classes.values())
    alone = sum(r.prompt + r.output + 2 + ceil(longest_wait / setting.tick) for r in requests)
    return alone + 2 + ceil(max((r.arrival for r in requests), default=Fraction(0)) / setting.tick)
