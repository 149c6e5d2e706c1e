"""One run of a sweep or a search, simulated in memory or measured by a load generator; what is kept of it.

A simulated point is what `simulate` would find: the same ledger, scheduler, window and definitions, without
the files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from ledgers.ledger import Ledger
from ledgers.metrics import Observations
from ledgers.options import ledger_from, scheduler_from, window_from
from ledgers.rows import encode
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter, command_line, settings_config
from ledgers.settings import WindowSettings
from ledgers.summary import summarize_requests
from ledgers.units import NS_PER_S
from mock_server.leaps import LEAPERS
from mock_server.leaps.driver import leap
from mock_server.simulation import write_simulation
from reports.agree import Replay, serve_arguments, window_arguments, write_planned
from reports.grid import Point, Setting, options_at
from reports.processes import load_generator, mock_server
from reports.show import read_summary

Options = Mapping[str, Any]
KEPT = (
    "window_s",
    "arrivals_s",
    "scheduled",
    "completed",
    "failed",
    "rejected",
    "cancelled",
    "unfinished",
    "not_sent",
    "censored",
    "throughput_rps",
    "throughput_arrivals_rps",
    "token_throughput_tps",
    "goodput_rps",
    "attainment",
    "queue_delay_ms",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "rests_on_largest",
    "concurrency_mean",
    "concurrency_peak",
    "by_class",
)
KEPT_BY_CLASS = (
    "scheduled",
    "completed",
    "throughput_rps",
    "goodput_rps",
    "attainment",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
)


class Seen(msgspec.Struct, frozen=True):
    """The requests of one run, to its end, and whether the load generator did its part.

    Of `without_row` more requests no row tells.
    """

    requests: Observations
    t_obs_ns: int
    without_row: int = 0
    client_limited: bool = False


class Server(msgspec.Struct, frozen=True):
    """What is measured: the server at a URL, or with none a mock server of each setting.

    `run_words` are further flags of `tokentick run`.
    """

    url: str | None = None
    run_words: Sequence[str] = ()

    @property
    def has_own_settings(self) -> bool:
        """Whether its scheduler is nobody's here to set."""
        return self.url is not None

    @property
    def shown_url(self) -> str:
        """Without what logs in."""
        if self.url is None:
            return "mock"
        scheme, _, rest = self.url.rpartition("://")
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

    @property
    def words_sha256(self) -> str:
        """They may hold secrets, so only whether they are the same is kept."""
        return hashlib.sha256(encode(list(self.run_words))).hexdigest()


def with_offered(summary: dict[str, Any]) -> dict[str, Any]:
    """What a point keeps of a summary, and the rate at which its requests really arrived."""
    kept = {name: summary[name] for name in KEPT}
    kept["by_class"] = {
        name: {key: of_class[key] for key in KEPT_BY_CLASS} for name, of_class in summary["by_class"].items()
    }
    span_s = summary["arrivals_s"]
    return {"offered_rps": (summary["scheduled"] - 1) / span_s if span_s else None, **kept}


def simulated(options: Options, ledger: Ledger) -> Seen:
    """A simulation of which nothing stays but what the summary needs."""
    window, settings = window_from(options), scheduler_from(options)
    seen = Observations(window.slo)
    for row, _ in leap(settings, LEAPERS[settings.policy](settings), ledger.rows):
        seen.add(row)
    return Seen(seen, seen.window_ns(_tail_s(window), cut_short=False))


def _tail_s(window: WindowSettings) -> Any:
    return "drain" if window.tail_ns == "drain" else window.tail_ns / NS_PER_S


def simulated_point(options: Options, ledger: Ledger, run: Path | None) -> dict[str, Any]:
    """The record of a point; `run` is the directory that it leaves, if it is to leave one."""
    if run is None:
        seen = simulated(options, ledger)
        return with_offered(summarize_requests(seen.requests, seen.t_obs_ns))
    info = RunInfo(
        kind="simulated",
        command=command_line(),
        config=settings_config(RunConfig(), scheduler_from(options), window_from(options)),
        ledger=LedgerInfo(name=ledger.name, sha256=ledger.sha256(), requests=len(ledger.rows)),
    )
    write_simulation(RunWriter(run, info), ledger, scheduler_from(options))
    return with_offered(read_summary(run))


def simulated_points(
    options: Options, settings: Sequence[Setting], points: Sequence[Point], runs: Path | None
) -> list[dict[str, Any]]:
    """The records of points that replay the same ledger. Runs in a worker of the pool."""
    first = points[0]
    ledger = ledger_from(options_at(options, {}, first.rate, first.seed))
    records = []
    for point in points:
        at = options_at(options, settings[point.setting], point.rate, point.seed)
        records.append(simulated_point(at, ledger, fresh(run_path(runs, point.index))))
    return records


def run_path(runs: Path | None, index: int) -> Path | None:
    return runs and runs / f"{index:05d}"


def fresh(run: Path | None) -> Path | None:
    """Without what an interrupted attempt at the same point has left there."""
    if run is not None:
        shutil.rmtree(run, ignore_errors=True)
    return run


@contextmanager
def measured(options: Options, server: Server, directory: Path) -> Iterator[Path]:
    """Measures one run in `directory`, and gives its run directory. TargetError if the server is unusable."""
    shutil.rmtree(directory, ignore_errors=True)
    replay = Replay(ledger_from(options), scheduler_from(options), window_from(options), directory)
    planned = write_planned(replay)
    serving = nullcontext(server.url) if server.url else mock_server(serve_arguments(replay))
    run = directory / "measured"
    with serving as url:
        load_generator(
            [
                str(planned),
                f"--base-url={url}",
                f"--seed={options['seed']}",
                f"--out={run}",
                *window_arguments(replay.window),
                *server.run_words,
            ],
            with_key=server.url is not None,
        )
    yield run


def measured_point(options: Options, server: Server, directory: Path) -> dict[str, Any]:
    """The record of a measured point; its files stay until they are removed."""
    with measured(options, server, directory) as run:
        summary = read_summary(run)
    return {**with_offered(summary), "client_limited": summary["client"]["client_limited"]}


def measured_rows(options: Options, server: Server, directory: Path) -> Seen:
    """The requests of a measured run."""
    with measured(options, server, directory) as path:
        run, summary = Run(path), read_summary(path)
        seen = Observations(run.info.config.slo)
        for row in run.rows():
            seen.add(row)
    t_obs_ns = seen.window_ns(run.info.config.tail_s, not run.info.complete or run.info.interrupted)
    return Seen(seen, t_obs_ns, summary["without_row"], summary["client"]["client_limited"])
