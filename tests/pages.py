"""Pages whose commands are run and whose figures are compared: their fenced blocks and tables of runs.

`python -m tests.pages docs/experiments.md DIR` runs a page in DIR and writes the figures into its tables.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
FENCED = re.compile(r"^```(\w+[ \w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of commands, and what the page says they print (None: nothing is said)."""

    kind: str
    commands: str
    printed: str | None


class Figure(NamedTuple):
    """A cell of a table whose first column names a run directory, and whose heads are keys of its summary."""

    run: str
    key: str
    cell: str


def blocks(page: str) -> Iterator[Block]:
    fenced = [match.groups() for match in FENCED.finditer(page)]
    for place, (kind, text) in enumerate(fenced):
        if kind.startswith("sh"):
            follows = fenced[place + 1 : place + 2]
            yield Block(kind, text, follows[0][1] if follows and follows[0][0] == "text" else None)


def run_block(block: Block, cwd: Path) -> str:
    """What the block printed. A command that fails is an error, but on a real clock: that may stall."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    command = ["bash", "-euo", "pipefail", "-c", block.commands]
    must_succeed = block.kind == "sh"
    return subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=must_succeed, timeout=200
    ).stdout


def figures(page: str) -> list[Figure]:
    found: list[Figure] = []
    fill(page, lambda figure: found.append(figure) or figure.cell)
    return found


def fill(page: str, cell_of: Callable[[Figure], str]) -> str:
    """The page with each figure's cell as `cell_of` has it."""
    lines, heads = page.split("\n"), list[str]()
    for place, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells[:1] == ["run"]:
            heads = [cell.strip("`") for cell in cells]
        elif heads and cells and not cells[0].startswith("-"):
            run = cells[0].strip("`")
            filled = [cell_of(Figure(run, key, cell)) for key, cell in zip(heads[1:], cells[1:], strict=True)]
            lines[place] = "| " + " | ".join([cells[0], *filled]) + " |"
        elif not cells:
            heads = []
    return "\n".join(lines)


def value(figure: Figure, cwd: Path) -> Any:
    found: Any = json.loads((cwd / figure.run / "summary.json").read_text())
    for key in figure.key.split("."):
        found = found[key]
    return found


def shown(figure: Figure, cwd: Path) -> str:
    """Shares in percent, times in whole ms, counts as they are, rates with two digits."""
    found = value(figure, cwd)
    if "attainment" in figure.key:
        return f"{found:.1%}".replace("%", " %")
    if isinstance(found, int):
        return str(found)
    return f"{found:.0f}" if "_ms." in figure.key else f"{found:.2f}"


def main(page: Path, cwd: Path) -> None:
    text = page.read_text()
    for block in blocks(text):
        if block.kind == "sh":
            printed = run_block(block, cwd)
            if block.printed is not None:
                text = text.replace(
                    block.commands + "```\n\n```text\n" + block.printed,
                    block.commands + "```\n\n```text\n" + printed,
                )
    page.write_text(fill(text, lambda figure: shown(figure, cwd)))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
