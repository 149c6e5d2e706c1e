"""A client as most tools write it: aiohttp, a task per request, a clock and a JSON parser at each line.

    python benchmarks/aiohttp_client.py PLAN.csv --base-url URL --out ROWS.jsonl [--record-tokens]

It shares no code with the rest, and is tuned neither for better nor for worse.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import time
from pathlib import Path
from typing import Any

import aiohttp


async def one_request(
    session: aiohttp.ClientSession, url: str, index: int, plan: dict[str, str], start: int
) -> dict[str, Any]:
    arrival = start + round(float(plan["arrival_s"]) * 1e9)
    await asyncio.sleep(max(0.0, (arrival - time.perf_counter_ns()) / 1e9))
    prompt = " ".join(["word"] * int(plan["prompt_tokens"]))
    body = {
        "model": "truth",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": int(plan["output_tokens"]),
    }
    times: list[int] = []
    tokens = 0
    sent = time.perf_counter_ns()
    async with session.post(url, json=body, headers={"X-Request-ID": f"a-{index}"}) as response:
        response.raise_for_status()
        async for line in response.content:
            text = line.decode().strip()
            if not text.startswith("data: ") or text == "data: [DONE]":
                continue
            now = time.perf_counter_ns()
            event = json.loads(text.removeprefix("data: "))
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                times.append(now)
            elif event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    return {
        "id": f"a-{index}",
        "request_id": f"a-{index}",
        "prompt_tokens": int(plan["prompt_tokens"]),
        "output_tokens": int(plan["output_tokens"]),
        "arrival_ns": arrival,
        "sent_ns": sent,
        "first_token_ns": times[0],
        "last_token_ns": times[-1],
        "tokens": tokens,
        "outcome": "completed",
        "token_ns": times,
    }


async def replay(plans: list[dict[str, str]], base_url: str) -> list[dict[str, Any]]:
    url = f"{base_url}/v1/chat/completions"
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        start = time.perf_counter_ns()
        tasks = [one_request(session, url, index, plan, start) for index, plan in enumerate(plans)]
        return await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--record-tokens", action="store_true")
    options = parser.parse_args()
    with options.plan.open(newline="") as file:
        plans = list(csv.DictReader(file))
    rows = asyncio.run(replay(plans, options.base_url))
    with options.out.open("w") as out:
        for row in rows:
            if not options.record_tokens:
                del row["token_ns"]
            print(json.dumps(row), file=out)


if __name__ == "__main__":
    main()
