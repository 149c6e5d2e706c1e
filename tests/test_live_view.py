"""The live view of a run: what it shows at which width, and that run and terminal are as without it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from ledgers.health import HealthSample
from ledgers.histograms import IntervalLog
from ledgers.printable import printable
from ledgers.rows import RequestRow, encode
from ledgers.rundir import Run
from ledgers.tail import Tail
from loadgen.live.progress import Progress, Watched
from loadgen.live.screen import Part
from loadgen.live.view import view
from loadgen.live.viewer import message_of
from loadgen.live.watched import Watch
from tests.conftest import COMMAND, MockServer

MS, S = 1_000_000, 1_000_000_000


def row(number: int, **fields: Any) -> RequestRow:
    """One that had its first token after 100 ms + its number."""
    known: dict[str, Any] = {"id": f"R{number}", "prompt_tokens": 9, "output_tokens": 2, "arrival_ns": 0}
    known |= {"first_token_ns": (100 + number) * MS, "last_token_ns": 900 * MS, "outcome": "completed"}
    return RequestRow(**known | fields)


def sample(second: int, **fields: Any) -> HealthSample:
    known: dict[str, Any] = {"asked": 10 * second, "sent": 9 * second, "in_flight": 3, "cpu_share": 0.05}
    found = HealthSample(t_ns=second * S, loop_lag_max_ns=second * MS, **known | fields)
    found.judge()
    return found


def halfway() -> Progress:
    """100 requests over ten seconds, of which five have passed."""
    watched = Watched(path="run", title="run toy against http://host", requests=100, last_arrival_s=10)
    progress = Progress(watched)
    for number in range(1, 38):
        progress.add(row(number))
    for number in range(3):
        progress.add(row(number, outcome="http_error", http_status=429, error="HTTP 429: \x1b[2Jslow down"))
    progress.add(row(50, outcome="timeout", phase="first_token"))
    for second in range(6):
        progress.add_health(sample(second))
    log = IntervalLog(0)
    log["itl"].record_all([20 * MS] * 99 + [40 * MS])
    for line in log.lines(0, 5 * S).decode().splitlines():
        progress.add_log_line(line)
    return progress


def shown(progress: Progress, width: int, **how: Any) -> list[str]:
    """As a terminal of that width without colours has it."""
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=True)
    with console.capture() as captured:
        for line in view(progress, width, **how):
            console.print(line, soft_wrap=True)
    return captured.get().splitlines()


def test_80_columns_show_all() -> None:
    """41 of 100 have ended; nearest-rank percentiles of TTFT 101 to 137 ms; 50 asked and 45 sent in 5 s."""
    assert shown(halfway(), 80) == [
        "run toy against http://host",
        "     5 s  ━━━━━━━━━━━━──────────────────  41 of 100 ended, about 5 s left",
        "requests  sent 45, in flight 3",
        "rate      asked 10.0/s, sent 9.0/s, over the last 5 s",
        "TTFT      p50 119.0 ms, p99 137.0 ms, n 37",
        "ITL       p50 20.0 ms, p99 20.0 ms, n 100",
        "failures  3 http_error 429, 1 timeout",
        "client    ok, loop lag 5.00 ms, max 5.00 ms, CPU 5%",
    ]


def test_40_columns_show_the_same_in_more_lines() -> None:
    assert shown(halfway(), 40, ascii_only=True) == [
        "run toy against http://host",
        "     5 s  #####---------  about 5 s left",
        "requests  sent 45, in flight 3",
        "rate      asked 10.0/s, sent 9.0/s",
        "          over the last 5 s",
        "TTFT      p50 119.0 ms, p99 137.0 ms",
        "          n 37",
        "ITL       p50 20.0 ms, p99 20.0 ms",
        "          n 100",
        "failures  3 http_error 429, 1 timeout",
        "client    ok, loop lag 5.00 ms",
        "          max 5.00 ms, CPU 5%",
    ]


@pytest.mark.parametrize("width", [1, 12, 20, 33, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    progress = halfway()
    progress.watched = Watched(path="run", title="a\x1b[2J\u202e名" * 40, requests=10**9)
    lines = view(progress, width)
    assert max(line.cell_len for line in lines) <= max(12, width)
    assert not any(re.search(r"[\x00-\x1f\u202e]", line.plain) for line in lines)


def test_a_closed_loop_has_no_rate_that_was_asked_for_and_ends_with_its_time() -> None:
    progress = Progress(Watched(path="run", title="run", requests=1000, send_for_s=20))
    for number in range(50):
        progress.add(row(number))
    progress.add_health(sample(5, asked=None))
    lines = shown(progress, 80)
    assert lines[1].endswith("50 of 1,000 ended, about 15 s left")
    assert lines[3] == "rate      as fast as the cap allows, sent 9.0/s, over the last 5 s"


def test_a_client_that_is_the_limit_or_says_nothing_is_named() -> None:
    progress = halfway()
    progress.add_health(sample(6, cpu_share=0.97))
    assert "client    CLIENT-LIMITED in 1 of 7 seconds" in "\n".join(shown(progress, 80))
    assert "it used 97% of a core" in "\n".join(shown(progress, 80))
    assert "client    NO WORD for 9 s" in "\n".join(shown(progress, 80, silent_s=9))


def test_a_run_that_is_stopping_waits_for_what_is_in_flight() -> None:
    """100 due in 10 s, stopped when 19 had left, of which 8 are awaited: what was not sent is no failure."""
    progress = Progress(Watched(path="run", title="run", requests=100, last_arrival_s=10))
    for number in range(11):
        progress.add(row(number))
    progress.add_health(sample(2, sent=19, in_flight=8))
    assert shown(progress, 80)[1].endswith("11 of 100 ended, about 8 s left")
    for number in range(19, 100):
        progress.add(row(number, outcome="not_sent", first_token_ns=None, last_token_ns=None))
    lines = shown(progress, 80)
    assert lines[1].endswith("11 of 100 ended, stopping: waiting for 8 in flight")
    assert lines[2] == "requests  sent 19, in flight 8, not sent 81"
    assert "failures  none" in lines


def test_a_turn_that_was_lost_stops_nothing() -> None:
    progress = Progress(Watched(path="run", title="run", requests=100))
    for number in range(50):
        progress.add(row(number))
    progress.add(row(50, outcome="not_sent", first_token_ns=None, last_token_ns=None))
    progress.add_health(sample(5, sent=53))
    assert shown(progress, 80)[1].endswith("50 of 100 ended, about 5 s left")


def test_a_retry_is_no_further_request() -> None:
    progress = Progress(Watched(path="run", title="run", requests=2))
    progress.add(row(1, outcome="http_error", http_status=503))
    progress.add(row(1, id="R1~1", retry_of="R1"))
    progress.add_health(sample(2, sent=2, retries=1))
    lines = shown(progress, 80)
    assert "1 of 2 ended" in lines[1]
    assert lines[2] == "requests  sent 1, in flight 3, tried again 1"


def test_files_are_read_as_they_grow(tmp_path: Path) -> None:
    """From before there are any; half a line waits for its other half."""
    watch = Watch(Watched(path=str(tmp_path), title="run", requests=3))
    assert not watch.look()
    line = encode(row(1)) + b"\n"
    with (tmp_path / "requests.jsonl").open("wb", buffering=0) as file:
        file.write(line + line[:20])
        assert watch.look()
        assert watch.progress.ended == 1
        assert not watch.look()
        file.write(line[20:])
        assert watch.look()
    assert watch.progress.ended == 2


def test_a_tail_reads_a_bounded_piece_at_a_time_and_keeps_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is far behind catches up look by look; one that is no longer watched costs no descriptor."""
    monkeypatch.setattr("ledgers.tail._MOST_BYTES", 10)
    path = tmp_path / "lines"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_bytes(b"first\nsecond\nthird\nhal")
    assert [tail.lines() for _ in range(3)] == [[b"first"], [b"second", b"third"], []]
    before = len(os.listdir("/proc/self/fd"))
    del tail
    assert len(os.listdir("/proc/self/fd")) == before - 1


@pytest.mark.parametrize("char", ["a", '"', "名", "😀", "\x1b", "\udc80"])
def test_a_line_that_is_said_fits_into_a_pipe_at_once(char: str) -> None:
    """Cut where it is too long, whatever its characters take; a short one is whole."""
    message = message_of(char * 5_000)
    assert 3_500 < len(message) <= 4_096
    assert printable(char * 5_000).startswith(json.loads(message))
    assert json.loads(message_of(char)) == printable(char)


class Screen:
    """What a terminal shows of what is written, so far as a `Part` uses one.

    Narrower, it folds its lines; wider, it unfolds the rows that it folded and that were not erased since.
    """

    def __init__(self, columns: int) -> None:
        self.lines, self.row, self.columns = [""], 0, columns
        self.goes_on = [False]  # whether a row is the first part of a line that was folded

    def write(self, text: str) -> None:
        for piece in re.findall(r"\x1b\[\d*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if piece.endswith("A") and piece[0] == "\x1b":
                self.row -= int(piece[2:-1])
                assert self.row >= 0
            elif piece == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
                self.goes_on += [False] * (self.row + 1 - len(self.goes_on))
            elif piece == "\x1b[J":
                del self.lines[self.row + 1 :], self.goes_on[self.row + 1 :]
                self.lines[self.row], self.goes_on[self.row] = "", False
            elif piece == "\x1b[2K":
                self.lines[self.row], self.goes_on[self.row] = "", False
            elif piece not in ("\r", "\x1b[K"):
                self.lines[self.row] = piece

    def resize(self, columns: int) -> None:
        whole = [""]
        for line, goes_on in zip(self.lines, self.goes_on, strict=True):
            whole[-1] += line
            whole += [] if goes_on else [""]
        rows = [[line[at : at + columns] for at in range(0, len(line) or 1, columns)] for line in whole[:-1]]
        self.lines = [part for parts in rows for part in parts]
        self.goes_on = [at < len(parts) for parts in rows for at in range(1, len(parts) + 1)]
        self.row, self.columns = len(self.lines) - 1, columns

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.columns, 10))


def test_lines_are_drawn_in_their_place_through_a_resize() -> None:
    """What stands above stays, what is said goes between, and at the end nothing else is left."""
    screen = Screen(40)
    console = Console(file=StringIO(), width=40, color_system=None, force_terminal=True)
    part = Part(console, screen.write, screen.size)
    screen.write("$ tokentick run\n")
    part.draw([Text("a" * 39), Text("b" * 20)])
    part.draw([Text("c" * 39), Text("d" * 20)], ["note: said"])
    assert screen.lines == ["$ tokentick run", "note: said", "c" * 39, "d" * 20, ""]
    screen.resize(16)
    part.draw([Text("e" * 15)])
    assert screen.lines == ["$ tokentick run", "note: said", "e" * 15, ""]
    screen.resize(60)
    part.draw([Text("f" * 50), Text("g" * 5)])
    for columns in (40, 20, 30):
        screen.resize(columns)
        part.draw([Text(letter * (columns - 1)) for letter in "hijk"])
    screen.resize(60)
    part.draw([Text("l" * 59)])
    assert screen.lines == ["$ tokentick run", "note: said", "l" * 59, ""]
    part.draw([])
    assert screen.lines == ["$ tokentick run", "note: said", ""]


# In a terminal


class Terminal:
    """A command on a pseudo-terminal, and all that it wrote there."""

    def __init__(self, words: list[str], cwd: Path, *, script: str = 'exec "$@"', **environment: str) -> None:
        """`script`: what a shell does with the command, if not just run it."""
        self.pid, self._there = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            shell = ["sh", "-c", script, "sh", *COMMAND, *words]
            os.execve("/bin/sh", shell, {**os.environ, "TERM": "xterm", **environment})
        self.said = ""

    def read(self, until: str = "", seconds: float = 40) -> str:
        """Until something was written, or the end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (until and until in self.said):
            try:
                ready, _, _ = select.select([self._there], [], [], 0.2)
                data = os.read(self._there, 1 << 16) if ready else b" "[:0]
            except OSError:
                break
            if ready and not data:
                break
            self.said += data.decode()
        assert not until or until in self.said, self.said
        return self.said

    def write(self, text: str) -> None:
        os.write(self._there, text.encode())

    def wait(self) -> int:
        self.read()
        os.close(self._there)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def words(server: MockServer) -> list[str]:
    """Twenty requests in about four seconds."""
    made = ["--num-prompts", "20", "--random-input-len", "9", "--random-output-len", "9", "--seed", "1"]
    return [
        "run",
        *made,
        "--arrival",
        "constant",
        "--request-rate",
        "5",
        "--base-url",
        server.url,
        "--out",
        "run",
    ]


def viewers(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(line.split()[0]) for line in found.stdout.splitlines() if "loadgen.live" in line]


def test_a_terminal_shows_the_run_and_is_clean_after_it(words: list[str], tmp_path: Path) -> None:
    """Also with several workers; what is said at the end comes after the view has been taken away."""
    terminal = Terminal([*words, "--workers", "2"], tmp_path)
    terminal.read("loop lag")
    assert terminal.wait() in (0, 4)
    view, _, after = terminal.said.rpartition("\x1b[J")
    assert "20 scheduled = 20 completed" in after
    assert "in flight" in view
    assert "\x1b" not in after
    assert "\x1b[?25l" not in view  # the cursor is never hidden


def test_a_viewer_that_dies_does_not_disturb_the_run(words: list[str], tmp_path: Path) -> None:
    terminal = Terminal(words, tmp_path)
    terminal.read("in flight")
    (viewer,) = viewers(terminal.pid)
    os.kill(viewer, signal.SIGKILL)
    assert terminal.wait() in (0, 4)
    assert "20 scheduled = 20 completed" in terminal.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_view_ends_with_the_run(words: list[str], tmp_path: Path, number: signal.Signals) -> None:
    """Whichever way that ends."""
    terminal = Terminal(words, tmp_path)
    terminal.read("in flight")
    (viewer,) = viewers(terminal.pid)
    os.kill(terminal.pid, number)
    assert terminal.wait() == (130 if number == signal.SIGINT else -number)
    wait_for_end(viewer)
    assert Run(tmp_path / "run").info.interrupted is (number == signal.SIGINT)


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}/cmdline") and time.monotonic() < deadline:
        if not Path(f"/proc/{pid}/cmdline").read_bytes():  # it has ended, and nobody has asked how
            break
        time.sleep(0.05)
    else:
        assert not os.path.exists(f"/proc/{pid}")


def test_what_a_shell_says_of_a_killed_run_stays(words: list[str], tmp_path: Path) -> None:
    """A view that was slow to notice that its run is gone writes nothing over it."""
    shell = Terminal(words, tmp_path, script='"$@" & echo pid $!; wait $!; echo rc $?; read line')
    shell.read("in flight")
    run = int(re.findall(r"pid (\d+)", shell.said)[0])
    (viewer,) = viewers(run)
    os.kill(viewer, signal.SIGSTOP)
    os.kill(run, signal.SIGKILL)
    shell.read("rc 137")
    os.kill(viewer, signal.SIGCONT)
    wait_for_end(viewer)
    shell.write("\n")
    assert shell.wait() == 0
    assert shell.said.rpartition("rc 137")[2].strip() == ""


def test_nothing_is_drawn_where_nobody_wants_it(words: list[str], tmp_path: Path) -> None:
    """Three runs at a time, which for the most part wait."""
    unwanted: dict[str, tuple[list[str], dict[str, str]]] = {
        "plain": (["--plain"], {}),
        "quiet": (["--quiet"], {}),
        "dumb": ([], {"TERM": "dumb"}),
    }
    terminals = {}
    for name, (flags, environment) in unwanted.items():
        (tmp_path / name).mkdir()
        terminals[name] = Terminal([*words, *flags], tmp_path / name, **environment)
    for name, terminal in terminals.items():
        assert terminal.wait() in (0, 4), name
        assert "\x1b" not in terminal.said, name
        assert ("20 scheduled = 20 completed" in terminal.said) is (name != "quiet"), name
