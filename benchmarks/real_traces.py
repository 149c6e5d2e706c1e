"""Do measured and simulated ledgers agree on real input? 300 requests of two public traces, about 4 minutes.

    python benchmarks/real_traces.py

Everything is left below runs/real-traces-<time>. Exit code 0 if both agree.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
TRACES = ROOT / "tests" / "data" / "traces"
RUNS = {
    "azure_2023_conv.head300.csv": ["--request-rate=5", "--hardware=medium"],
    "mooncake_conversation.head300.jsonl": ["--request-rate=10", "--hardware=large"],
}


def main() -> int:
    out = Path("runs") / f"real-traces-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    codes = []
    for trace, flags in RUNS.items():
        command = ["agree", str(TRACES / trace), *flags, f"--out={out / Path(trace).stem}"]
        print(f"\n$ tokentick {' '.join(command)}", flush=True)
        codes.append(subprocess.run([sys.executable, "-m", "tokentick", *command]).returncode)
    return 0 if not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main())
