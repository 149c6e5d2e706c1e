"""The teaching pages keep their word: their commands run, and what came out is what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.documents import PLAN, shortened
from tests.pages import ROOT, Block, Figure, blocks, figures, fill, run_block, shown, value

Ran = dict[str, tuple[Path, list[tuple[Block, str]]]]
PAGES = ["experiments.md", "migration.md"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Each page's simulated blocks, run in order in a directory of its own, with what they printed."""
    done: Ran = {}
    for name in PAGES:
        cwd = tmp_path_factory.mktemp("page")
        simulated = [block for block in blocks(read(name)) if block.kind == "sh"]
        done[name] = cwd, [(block, run_block(block, cwd)) for block in simulated]
    return done


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_on_the_page_came_out(ran: Ran, name: str) -> None:
    """Every cell of every table of runs, to the digits that are printed."""
    cwd, _ = ran[name]
    found = figures(read(name))
    assert len(found) > 10
    assert [figure.cell for figure in found] == [shown(figure, cwd) for figure in found]


@pytest.mark.parametrize("name", PAGES)
def test_what_the_page_says_is_printed_is_printed(ran: Ran, name: str) -> None:
    said = [(block.printed, printed) for block, printed in ran[name][1] if block.printed is not None]
    assert said
    for expected, printed in said:
        assert printed == expected


class Runs:
    """Figures of the runs of experiments.md."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd

    def __call__(self, run: str, key: str) -> Any:
        return value(Figure(f"runs/{run}", key, ""), self._cwd)


@pytest.fixture
def figure(ran: Ran) -> Runs:
    return Runs(ran["experiments.md"][0])


def test_a_higher_rate_pushes_the_queues_tail_first_and_tpot_last(figure: Runs) -> None:
    def growth(key: str) -> float:
        return float(figure("rate-3", key) / figure("rate-1", key))

    assert growth("queue_delay_ms.p99") > 7 > 1.6 > growth("queue_delay_ms.p50")
    assert growth("ttft_ms.p99") > 4
    assert figure("rate-4.5", "tpot_ms.mean") / figure("rate-1", "tpot_ms.mean") < 1.07


def test_waiting_for_a_batch_goes_into_ttft(figure: Runs) -> None:
    """TTFT grows by the growth of the queue or more; median TPOT and throughput do not move."""
    for wait in ("wait-0.2", "wait-0.8"):
        queue, ttft = (
            figure(wait, f"{name}.mean") - figure("wait-0", f"{name}.mean")
            for name in ("queue_delay_ms", "ttft_ms")
        )
        assert ttft > queue - 1e-6
        assert queue > 100
        for key in ("tpot_ms.p50", "throughput_rps"):
            assert figure(wait, key) == pytest.approx(figure("wait-0", key))


def test_continuous_batching_lets_latecomers_in_and_deletes_no_work(figure: Runs) -> None:
    for key in ("output_tokens", "prompt_tokens", "throughput_rps"):
        assert figure("late-static", key) == figure("late-continuous", key)
    assert figure("late-continuous", "queue_delay_ms.p95") < figure("late-static", "queue_delay_ms.p95") / 4


def test_equal_throughput_is_not_equal_goodput(figure: Runs) -> None:
    runs = ("equal-static", "equal-continuous", "equal-chunked")
    assert len({(figure(run, "throughput_rps"), figure(run, "token_throughput_tps")) for run in runs}) == 1
    goodput = [figure(run, "goodput_rps") for run in runs]
    assert goodput == sorted(set(goodput))


def test_a_long_request_at_the_head_blocks_as_its_policy_lets_it(figure: Runs) -> None:
    waits = [
        figure(f"line-{policy}", "by_class.short.queue_delay_ms.mean")
        for policy in ("immediate", "continuous", "chunked")
    ]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > 20 * waits[2]


def test_tokens_per_second_is_highest_where_users_wait(ran: Ran, figure: Runs) -> None:
    """From 45 s on the rate is that of the beginning; at 60 s all is as before, as the backlog predicts."""
    printed = next(printed for block, printed in ran["experiments.md"][1] if "watch.py" in block.commands)
    spans = {
        int(line.split()[0]): [float(word) for word in line.split()[1:]] for line in printed.splitlines()[1:]
    }
    for start in (45, 50, 55):
        arrived, tokens, _, ttft, tpot = spans[start]
        assert arrived == spans[25][0]
        assert tokens == max(span[1] for span in spans.values())
        assert ttft > 10 * spans[25][3]
        assert tpot <= 1.2 * spans[25][4]
    assert spans[60][3] == spans[25][3]
    assert figure("phases", "by_class.draining.attainment") == 0.1


def test_class_queues_give_to_one_class_what_they_take_from_another(figure: Runs) -> None:
    one, own = "fair-continuous", "fair-classes"
    assert figure(one, "throughput_rps") == figure(own, "throughput_rps")
    assert figure(own, "by_class.short.e2e_ms.p95") < 0.67 * figure(one, "by_class.short.e2e_ms.p95")
    assert figure(own, "by_class.long.attainment") < figure(one, "by_class.long.attainment")
    assert figure(own, "attainment") < figure(one, "attainment")


def test_littles_law_holds_where_nothing_is_left_and_fails_where_a_queue_is_cut(figure: Runs) -> None:
    def law(run: str) -> float:
        return float(figure(run, "littles_law.product") / figure(run, "littles_law.concurrency_mean"))

    assert law("little-steady") == pytest.approx(1, abs=0.01)
    assert law("little-burst") < 0.9
    assert law("phases") == pytest.approx(1, abs=1e-12)
    assert figure("phases", "attainment") < 0.6, "and yet it was overloaded"


@pytest.mark.parametrize(("name", "requests"), [("experiments.md", 16), ("migration.md", 24)])
def test_the_real_clock_agrees(ran: Ran, name: str, requests: int) -> None:
    """Shorter than printed. A stall may make it inconclusive, but never makes it another schedule."""
    block = next(block for block in blocks(read(name)) if block.kind == "sh real-clock")
    command = shortened(block.commands.replace("\\\n", " "), PLAN[name])
    printed = run_block(block._replace(commands=command), ran[name][0])
    assert f"(a) served = simulated from the same inputs: {requests}/{requests} requests" in printed


def test_the_migration_ends_with_the_settings_that_keep_both_bounds(ran: Ran) -> None:
    """E2E p95 of 1.5 s and 8 s at 2 per second; and who throws requests away keeps no p95 of all."""
    cwd, _ = ran["migration.md"]

    def of(run: str, key: str) -> Any:
        return value(Figure(f"runs/{run}", key, ""), cwd)

    def keeps(run: str) -> bool:
        bounds = {"short": 1500, "long": 8000}
        return not of(run, "rejected") and all(
            of(run, f"by_class.{name}.e2e_ms.p95") <= bound for name, bound in bounds.items()
        )

    settings = ("slots", "shared", "batched", "short-queue", "lanes", "limited-shared", "limited-lanes")
    assert [run for run in settings if keeps(run)] == ["limited-shared", "limited-lanes"]
    for name in ("short", "long"):
        assert of("short-queue", f"by_class.{name}.rejected") > 0.05 * of(
            "short-queue", f"by_class.{name}.scheduled"
        )
    kept = [f"{policy}-{rate}" for policy in ("continuous", "classes") for rate in (2.2, 2.4, 2.6)]
    assert [run for run in kept if keeps(run)] == ["continuous-2.2", "classes-2.2", "classes-2.4"]


def test_a_cell_that_is_wrong_is_found(ran: Ran) -> None:
    """The check of the tables can fail: a page with one other digit is another page."""
    cwd, _ = ran["experiments.md"]
    page = read("experiments.md")
    assert fill(page, lambda figure: shown(figure, cwd)) == page
    assert fill(page.replace("| 1185 |", "| 1186 |"), lambda figure: shown(figure, cwd)) == page
