"""Every block of commands on the pages, made to run here: what is shortened or left out, and why.

Blocks of commands are those marked `sh`, and unmarked ones with a line that begins with a known program.
A page's blocks run in order in a directory of its own. Its `tokentick serve` is started on a free port, and
what the page sends to a server goes there; without one a mock server stands in. `sh real-clock` marks what
prints other figures each time.

`python -m tests.documents docs/scheduler.md ...` writes what the blocks marked `sh` print into the pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.conftest import serving
from tests.pages import ROOT

FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVER = re.compile(r"(?:https?://)(?:127\.0\.0\.1|localhost|server|llm\.example\.org)(?::80\d\d)?|\bURL\b")
SERVE = "tokentick serve"
STANDING_IN = "--hardware medium --tick 0.01"  # a quick server, for pages that say nothing of it
PROGRAMS = ("tokentick", "make", "python", "python3", "curl", "pip", "source", "zcat", "printf", "cat", "awk")
OF_OTHERS = ("vllm", "aiperf", "guidellm", "inference-perf", "python -m sglang")
MOONCAKE = "tests/data/traces/mooncake_conversation.head300.jsonl"
TRACE = "tests/data/traces/azure_2023_conv.head300.csv"

# Lines that begin so are not run, on any page.
NOT_RUN: Mapping[str, str] = {
    **dict.fromkeys(OF_OTHERS, "another project's tool, which is not installed here"),
    "make ": "installs into .venv first; of `make demo`, what it runs then is run (`DEMO`)",
    "source ": "the environment that the tests run in is active",
    "pip install": "the tests install nothing",
    "tokentick lab": "a page for a browser; its own tests start it",
    "python -m benchmarks": "takes minutes, and a quiet machine",
    "python -m tests": "takes minutes; a test of its own has a part of it",
}

# How these end depends on machine and figures: a bad verdict (1), or an open one (4), is an answer too.
VERDICT = re.compile(r"^tokentick (?:run|agree|compare|sweep|calibrate)\b|--require\b")

# What `make demo` runs, at five times the speed.
FASTER = "--request-rate 16 --tick 0.02"
DEMO = f"tokentick agree toy --preset head-of-line --policy all --out runs/demo {FASTER}"


class Page(NamedTuple):
    """How a page is run.

    `before`: commands that make what the page takes for granted. `shorter`: flags to add to a command that
    begins so, as it would take too long. `elsewhere`: another test runs the blocks marked `sh`, those of a
    real clock shortened as here.
    """

    before: str = ""
    shorter: Mapping[str, str] = {}
    elsewhere: bool = False


class Fence(NamedTuple):
    """A fenced block: what it is marked as, its text, and the block marked `text` that follows at once."""

    kind: str
    text: str
    line: int
    printed: str | None

    @property
    def lines(self) -> list[str]:
        """With lines that were continued joined."""
        return self.text.replace("\\\n", " ").split("\n")

    @property
    def commands(self) -> bool:
        first_words = {(line.split() or [""])[0] for line in self.lines}
        known = first_words & {*PROGRAMS, *(name.split()[0] for name in OF_OTHERS)}
        return self.kind.startswith("sh") or (self.kind == "" and bool(known))


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def fences(page: str) -> Iterator[Fence]:
    found = list(FENCED.finditer(page))
    for place, match in enumerate(found):
        following = found[place + 1] if place + 1 < len(found) else None
        at_once = following and not page[match.end() : following.start()].strip()
        printed = following[2] if following and at_once and following[1] == "text" else None
        yield Fence(match[1], match[2], page[: match.start()].count("\n") + 1, printed)


def first_block(name: str) -> str:
    return next(fences((ROOT / "docs" / name).read_text(encoding="utf-8"))).text


FEW = "--num-prompts 6 --request-rate 30 --max-output 8"
MUCH_FASTER = "--request-rate 32 --tick 0.01"  # ten times; for what no page shows the output of
CALIBRATION = "--streams 3 --seconds 0.2"
MIXED = (
    "tokentick trace make trace.csv --num-prompts 120 --request-rate 2"
    " --mix short=0.8,uniform:10-20,4 --mix long=0.2,40,8\n"
)
RUNS = """
for seed in 1 2; do
  tokentick simulate trace.csv --arrival poisson --request-rate 2 --seed $seed --quiet --out runs/a$seed
  cp -r runs/a$seed runs/b$seed
done
for run in a b c before after; do cp -r runs/a1 runs/$run; done
"""
SEARCH = "--num-prompts 50 --max-requests 200 --request-rate 0.5,2"
PLAN: Mapping[str, Page] = {
    "README.md": Page(
        before=f"cp {TRACE} my_trace.csv\n",
        shorter={
            "tokentick run toy": "--request-rate 30",
            "tokentick agree toy": MUCH_FASTER,
            "tokentick run --num-prompts": "--num-prompts 6 --request-rate 30 --random-output-len 8",
            "tokentick run my_trace.csv": f"--api chat --model tokentick-mock {FEW}",
            "tokentick calibrate": CALIBRATION,
        },
    ),
    "capacity.md": Page(
        before=MIXED,
        shorter={
            "tokentick trace make trace.csv": "--force --num-prompts 100",
            "tokentick trace make bursts.csv": "--num-prompts 200",
            "tokentick sweep trace.csv --num-prompts": "--num-prompts 30 --repeats 1",
            "tokentick sweep trace.csv --find": SEARCH,
            "tokentick run trace.csv": FEW,
        },
    ),
    "compare.md": Page(
        before=MIXED + RUNS,
        shorter={"tokentick run trace.csv": FEW},
    ),
    "diagnosis.md": Page(before=MIXED + RUNS),
    "experiments.md": Page(elsewhere=True, shorter={"tokentick agree toy": FASTER}),
    "method.md": Page(shorter={"tokentick run --num-prompts 60": "--num-prompts 30"}),
    "migration.md": Page(
        elsewhere=True,
        before=first_block("migration.md"),
        shorter={
            "tokentick sweep migrating.csv --find": SEARCH,
            "tokentick agree migrating.csv": "--max-output 100 --request-rate 8",
        },
    ),
    "shaping.md": Page(
        before=f"tokentick trace convert {TRACE} azure.csv --request-rate 0.2\ncp {MOONCAKE} mooncake.jsonl\n"
    ),
    "sweep.md": Page(
        before=MIXED,
        shorter={
            "tokentick sweep trace.csv --request-rate auto": "--num-prompts 30 --repeats 2",
            "tokentick sweep trace.csv --request-rate 1,2,4": "--num-prompts 4 --request-rate 20,40",
            "tokentick sweep --num-prompts 2000": SEARCH,
            "tokentick sweep trace.csv --arrival poisson --find": SEARCH,
        },
    ),
    "trace-describe.md": Page(before=MIXED + "tokentick trace convert trace.csv - | gzip > trace.jsonl.gz\n"),
    "getting-started.md": Page(
        shorter={
            "tokentick serve": "--tick 0.01",
            "tokentick run toy": "--request-rate 160",
            "tokentick agree toy": MUCH_FASTER,
        }
    ),
    "real-endpoint.md": Page(
        shorter={
            "tokentick calibrate": CALIBRATION,
            "tokentick run traffic.jsonl --base-url http://127.0.0.1:8000 --seed": FEW,
            "tokentick run traffic.jsonl": "--num-prompts 30 --request-rate 40 --max-output 8",
            "tokentick sweep traffic.jsonl": "--num-prompts 6 --request-rate 40,80",
        }
    ),
}


def why_not(line: str) -> str | None:
    return next((reason for start, reason in NOT_RUN.items() if line.startswith(start)), None)


def shortened(line: str, page: Page) -> str:
    """The line without its comment, and with the flags that the plan adds to it."""
    command = re.sub(r" {2,}# .*", "", line.rstrip())
    start = command.lstrip()
    flags = next((flags for begins, flags in page.shorter.items() if start.startswith(begins)), "")
    return f"{command} {flags}".rstrip()


def runnable(line: str, page: Page) -> str:
    """The line as it is run here."""
    if why_not(line) or line.startswith(SERVE):
        return ":"
    command = shortened(line, page)
    return f"{command} || [[ $? == [14] ]]" if VERDICT.search(command.lstrip()) else command


class Reader:
    """Somebody who types a page's commands, in a directory of their own, with a server at hand."""

    def __init__(self, cwd: Path, name: str, stack: ExitStack) -> None:
        self._cwd, self._page, self._stack = cwd, PLAN.get(name.removeprefix("docs/"), Page()), stack
        self._url: str | None = None
        self._servers = 0
        (cwd / "tests").symlink_to(ROOT / "tests")
        bash(self._page.before, cwd).check_returncode()

    def type(self, fence: Fence) -> str:
        """What the block printed, its errors aside. AssertionError if a command failed."""
        for line in fence.lines:
            if line.startswith(SERVE):
                self._serve(shortened(line, self._page).removeprefix(SERVE))
        script = "\n".join(runnable(line, self._page) for line in fence.lines)
        if SERVER.search(script):
            if self._url is None:
                self._serve(STANDING_IN)
            script = SERVER.sub(str(self._url), script)
        done = bash(script, self._cwd)
        good = done.returncode == 0 and "Traceback" not in done.stderr
        assert good, f"line {fence.line}:\n{script}\n{done.stdout[-2000:]}\n{done.stderr}"
        return done.stdout

    def _serve(self, flags: str) -> None:
        self._servers += 1
        out = self._cwd / f"server-{self._servers}"
        self._url = self._stack.enter_context(serving(out, *flags.split())).url


def bash(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def alike(shown: str, printed: str, *, exactly: bool) -> bool:
    """Whether this was printed. A line of dots stands for any lines, a figure of a real clock for any."""
    wanted = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(plain(line, exactly)) + r"\n"
        for line in shown.splitlines()
    )
    return (
        re.fullmatch(wanted, "".join(plain(line, exactly) + "\n" for line in printed.splitlines()))
        is not None
    )


def plain(line: str, exactly: bool) -> str:
    line = line.rstrip()
    return line if exactly else re.sub(r"-{3,}|\s+", " ", re.sub(r"\d[\d.,*]*", "0", line))


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def links(page: str) -> list[str]:
    """Where a page points to, on other pages or in itself; outside of code."""
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page))
    return [target for target in LINK.findall(prose) if not re.match(r"[a-z]+:", target)]


def anchors(page: str) -> set[str]:
    """Of the headings, as code hosts make them."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", FENCED.sub("", page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        seen = found.get(name, 0)
        found[name] = seen + 1
        names.add(f"{name}-{seen}" if seen else name)
    return names


def write_outputs(path: Path) -> None:
    """Run a page, and put what its blocks marked `sh` printed below them, where it shows all of it."""
    page = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        reader = Reader(Path(directory), path.name, stack)
        for fence in fences(page):
            if fence.commands and fence.kind.startswith("sh"):
                printed = reader.type(fence)
                if fence.kind == "sh" and fence.printed is not None and "...\n" not in fence.printed:
                    shown = f"```sh\n{fence.text}```\n\n```text\n"
                    page = page.replace(f"{shown}{fence.printed}```", f"{shown}{printed}```", 1)
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)
    for argument in sys.argv[1:]:
        write_outputs(Path(argument))
