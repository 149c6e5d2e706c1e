"""The real-clock driver against the virtual one: only *when* differs, never *what*."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.traffic import Traffic, TrafficClass
from mock_server.engine import Engine, Job
from mock_server.policies import POLICIES, make_scheduler
from mock_server.simulate import served_inputs, simulate

TICK_NS = 100_000_000


class Clock:
    """A clock that stands still until told otherwise."""

    def __init__(self) -> None:
        self.now_ns = 7_000_000_000

    def __call__(self) -> int:
        return self.now_ns


class Client:
    """A sink that counts what it was given."""

    file = -1

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.fates: list[str | None] = []
        self.aborted = False

    def token(self, index: int, last: bool) -> bytes | None:
        self.tokens.append(index)
        return b""

    def held_back(self, rest: bytes) -> None:
        raise AssertionError("nothing was to be written")

    def decided(self, rejection: str | None) -> None:
        self.fates.append(rejection)

    def abort(self) -> None:
        self.aborted = True


class World:
    """An engine on a clock moved by hand."""

    def __init__(self, setup: SchedulerSettings) -> None:
        self.setup = setup
        self.clock = Clock()
        self.rows: list[RequestRow] = []
        self.ticks: list[TickRow] = []
        self.writes: list[bytes] = []
        self.engine = Engine(
            lambda: make_scheduler(setup),
            self.clock,
            self.hand_over,
            on_row=self.rows.append,
            on_tick=self.ticks.append,
            record_events=True,
        )

    def hand_over(self, writes: list[tuple[int, bytes]]) -> list[tuple[int, int]]:
        self.writes += [data for _, data in writes if data]
        return [(self.clock(), len(data)) for _, data in writes]

    def submit(self, prompt_tokens: int, output_tokens: int, class_: str | None = None) -> Job:
        job = Job(None, prompt_tokens, output_tokens, Client(), class_=class_)
        self.engine.submit(job)
        return job

    def pass_time(self, ns: int) -> None:
        """Time passes and the loop is busy with something else: no tick runs."""
        self.clock.now_ns += ns

    def run_out(self) -> None:
        while self.engine.due_ns is not None:
            self.clock.now_ns = max(self.clock.now_ns, self.engine.due_ns)
            self.engine.run_due()

    def resimulate(self) -> tuple[list[RequestRow], list[TickRow]]:
        ticks: list[TickRow] = []
        requests, cancels = served_inputs(self.rows)
        scheduler = make_scheduler(self.setup)
        rows = list(simulate(scheduler, requests, cancels=cancels, on_tick=ticks.append, record_events=True))
        return rows, [tick for tick in ticks if not tick.idle or tick.events]


setups = st.builds(
    SchedulerSettings,
    policy=st.sampled_from(sorted(POLICIES)),
    max_batch=st.integers(1, 5),
    max_wait_ns=st.sampled_from([0, TICK_NS // 3, 2 * TICK_NS, 5 * TICK_NS]),
    prefill_chunk=st.integers(1, 12),
    hardware=st.builds(
        Hardware,
        prefill_tokens_per_tick=st.integers(1, 30),
        decode_slots=st.integers(1, 4),
        kv_budget_tokens=st.integers(10, 80),
    ),
    max_queue=st.none() | st.integers(1, 3),
    max_model_len=st.none() | st.integers(20, 60),
    traffic=st.builds(
        Traffic,
        ageing_s=st.sampled_from([0.03, 0.1, 1.0]),
        classes=st.fixed_dictionaries(
            {},
            optional={
                name: st.builds(
                    TrafficClass,
                    max_batch=st.none() | st.integers(1, 3),
                    max_wait_s=st.sampled_from([None, 0, 0.15]),
                    priority=st.integers(-2, 2),
                )
                for name in ("short", "long", "*")
            },
        ),
    ),
)
CLASSES = (None, "short", "long", "other")
actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40), st.integers(1, 12)),
        st.tuples(st.just("wait"), st.integers(0, 5 * TICK_NS), st.just(0)),
        st.tuples(st.just("wake"), st.just(0), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 30), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(setup=setups, script=actions)
def test_whatever_the_lateness_a_simulation_of_the_inputs_gives_the_same_ticks(
    setup: SchedulerSettings, script: list[tuple[str, int, int]]
) -> None:
    """Arrivals, disconnects in any phase, a loop that wakes up late: ticks, rows and events are equal."""
    world = World(setup)
    jobs: list[Job] = []
    for action, x, y in script:
        if action == "submit":
            jobs.append(world.submit(x, y, CLASSES[x % len(CLASSES)]))
        elif action == "wait":
            world.pass_time(x)
        elif action == "wake":
            world.engine.run_due()
        elif jobs:
            world.engine.cancel(jobs[x % len(jobs)])
    world.run_out()
    rows, ticks = world.resimulate()
    assert len(world.rows) == len(jobs)
    assert {row.id: row.ticks for row in rows} == {row.id: row.ticks for row in world.rows}
    for field in ("outcome", "error", "http_status", "class_"):
        theirs = {row.id: getattr(row, field) for row in world.rows}
        assert {row.id: getattr(row, field) for row in rows} == theirs
    for job, row in zip(jobs, sorted(world.rows, key=lambda row: row.received_ns or 0), strict=True):
        assert isinstance(job.sink, Client)
        assert job.sink.fates == [row.error]
    for tick in world.ticks:
        tick.late_ns = None
    assert ticks == world.ticks


def test_a_late_tick_admits_by_stamp_and_not_by_presence() -> None:
    """A request stamped after tick 1 was due waits for tick 2, though tick 1 ran when it was there."""
    world = World(SchedulerSettings(policy="immediate"))
    world.submit(1, 1)
    world.engine.run_due()
    world.pass_time(TICK_NS + TICK_NS // 2)
    late = world.submit(1, 1)
    world.run_out()
    assert late.ticks.received == 2
    assert world.ticks[1].late_ns == TICK_NS // 2


def test_a_request_at_the_very_time_of_a_tick_that_has_run_belongs_to_the_next() -> None:
    """As its stamp says: what is replayed from it is admitted by the same tick."""
    world = World(SchedulerSettings(policy="immediate"))
    world.submit(1, 9)
    world.pass_time(2 * TICK_NS)
    world.engine.run_due()
    job = world.submit(1, 1)
    assert job.arrival_ns > 2 * TICK_NS
    world.run_out()
    assert job.ticks.received == 3


def test_ticks_that_are_due_together_run_one_after_another() -> None:
    """After a stall of ten ticks, a request with five tokens has them on five ticks, not on one."""
    world = World(SchedulerSettings(policy="immediate"))
    job = world.submit(1, 5)
    world.pass_time(10 * TICK_NS)
    world.engine.run_due()
    assert (job.ticks.first_token, job.ticks.last_token) == (1, 5)
    assert world.rows[0].outcome == "completed"


def test_the_grid_stays_anchored_over_idle_time() -> None:
    """A request that comes 3.25 ticks after the first belongs to tick 4 of the same grid."""
    world = World(SchedulerSettings(policy="immediate"))
    world.submit(1, 1)
    world.run_out()
    assert world.engine.due_ns is None
    world.clock.now_ns = 7_000_000_000 + 3 * TICK_NS + TICK_NS // 4
    job = world.submit(1, 1)
    assert world.engine.due_ns == 7_000_000_000 + 4 * TICK_NS
    world.run_out()
    assert job.ticks.received == 4


def test_reset_is_refused_while_anything_is_in_flight_and_then_moves_the_anchor() -> None:
    """A reset in the middle would cut requests loose from their grid."""
    world = World(SchedulerSettings(policy="immediate"))
    world.submit(1, 3)
    assert not world.engine.reset()
    world.run_out()
    assert world.engine.reset()
    world.pass_time(12345)
    world.submit(1, 1)
    assert world.engine.anchor_ns == world.clock.now_ns


def test_requests_with_the_same_clock_reading_keep_their_order() -> None:
    """Stamps strictly increase, so that sorting a ledger by them gives the order of arrival."""
    world = World(SchedulerSettings())
    jobs = [world.submit(1, 1) for _ in range(5)]
    stamps = [job.received_ns for job in jobs]
    assert stamps == sorted(set(stamps))


def test_a_shutdown_leaves_a_row_for_everything_in_flight() -> None:
    """Cut requests are unfinished rows with the tokens they had, and their clients are let go."""
    world = World(SchedulerSettings(policy="immediate"))
    job = world.submit(1, 9)
    world.pass_time(3 * TICK_NS)
    world.engine.run_due()
    world.engine.abandon()
    assert [(row.outcome, row.tokens) for row in world.rows] == [("unfinished", 3)]
    assert isinstance(job.sink, Client)
    assert job.sink.aborted


def test_ticks_that_are_due_together_write_to_each_client_once() -> None:
    """Late tokens share a write, whose time they carry; the ticks stay as they were due."""
    world = World(SchedulerSettings(policy="continuous", max_wait_ns=0))

    class Bytes(Client):
        def token(self, index: int, last: bool) -> bytes:
            return b"%d," % index

    job = Job(None, 1, 4, Bytes())
    job.token_ns = []
    world.engine.submit(job)
    world.pass_time(3 * TICK_NS)
    world.engine.run_due()
    assert world.writes == [b"0,1,2,"]
    world.pass_time(TICK_NS)
    world.engine.run_due()
    assert world.writes == [b"0,1,2,", b"3,"]
    assert world.rows[0].token_ns == [3 * TICK_NS] * 3 + [4 * TICK_NS]
    assert world.rows[0].ticks is not None
    assert (world.rows[0].ticks.first_token, world.rows[0].ticks.last_token) == (1, 4)


def test_a_stream_keeps_its_place_among_the_writes() -> None:
    """Who ends before it does not move it up, which would shorten its gaps; a newcomer fills the place."""
    world = World(SchedulerSettings(policy="continuous", max_batch=3, max_wait_ns=0))

    class Named(Client):
        def __init__(self, name: bytes) -> None:
            super().__init__()
            self.name = name

        def token(self, index: int, last: bool) -> bytes | None:
            return self.name

    def submit(name: bytes, output_tokens: int) -> None:
        world.engine.submit(Job(None, 1, output_tokens, Named(name)))

    def tick() -> bytes:
        world.writes.clear()
        world.pass_time(TICK_NS)
        world.engine.run_due()
        return b"".join(world.writes)

    for name, output_tokens in ((b"a", 3), (b"b", 4), (b"c", 6)):
        submit(name, output_tokens)
    world.engine.run_due()
    assert [tick(), tick(), tick()] == [b"a", b"abc", b"abc"]
    submit(b"d", 9)
    assert [tick(), tick(), tick(), tick()] == [b"bc", b"dbc", b"dc", b"dc"]


def test_a_token_that_waits_for_its_event_carries_the_time_at_which_it_left() -> None:
    """Two tokens per event: the first of each pair was written when the second was."""
    world = World(SchedulerSettings(policy="continuous", max_wait_ns=0))

    class Pairs(Client):
        def token(self, index: int, last: bool) -> bytes | None:
            return b"%d," % index if index % 2 or last else None

    job = Job(None, 1, 3, Pairs())
    job.token_ns = []
    world.engine.submit(job)
    for _ in range(4):
        world.pass_time(TICK_NS)
        world.engine.run_due()
    row = world.rows[0]
    assert row.token_ns == [2 * TICK_NS, 2 * TICK_NS, 3 * TICK_NS]
    assert (row.first_token_ns, row.last_token_ns) == (2 * TICK_NS, 3 * TICK_NS)


def test_an_engine_that_cannot_keep_up_lets_others_have_a_turn() -> None:
    """Ticks that take longer than they last: `run_due` comes back though more are due."""
    world = World(SchedulerSettings(policy="immediate"))
    job = world.submit(1, 70)
    slow = Client.token

    class Slow(Client):
        def token(self, index: int, last: bool) -> bytes | None:
            world.pass_time(2 * TICK_NS)
            return slow(self, index, last)

    job.sink = Slow()
    world.pass_time(50 * TICK_NS)
    world.engine.run_due(at_most_ns=5 * TICK_NS)
    assert world.rows == []
    assert world.engine.due_ns is not None
    assert world.engine.due_ns < world.clock.now_ns
    world.engine.cancel(job)
    world.run_out()
    assert world.rows[0].outcome == "cancelled"
