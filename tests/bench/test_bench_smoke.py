"""Every benchmark runs, and prints the rows it promises. What it measures is not judged here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROWS = {
    "overhead": {
        "a NumPy inline",
        "a asyncsched",
        "a run_in_executor",
        "b run_in_executor",
        "b to_thread",
        "b asyncsched, await x + 1",
        "b asyncsched, await s.call(fn, x)",
        "c NumPy inline, one matmul",
        "c asyncsched, first of ten",
        "d inline, n=1,000",
        "d independent, issue, n=1,000",
        "d chain, issue to barrier, n=1,000",
        "d independent, no gc, issue, n=1,000",
        "e operator, handle kept",
        "e submit_nowait(fn, x), handle kept",
        "f import asyncsched",
    },
    "throughput": {
        "a NumPy inline",
        "a asyncsched, streams=2",
        "a asyncsched, streams=1",
        "a run_in_executor, 2 workers",
        "a to_thread, 2 workers",
        "b training, max_ops=64",
        "b training, unbounded",
        "b tracked bytes, bounded",
        "b resident bytes, unbounded",
        "c streams=2, max_ops=1",
        "c streams=2, max_ops=None",
    },
    "pipeline": {
        "a asyncio.Queue(16)",
        "a asyncio.Queue(1)",
        "a asyncsched",
        "b asyncio.Queue(16), to_thread",
        "b asyncsched",
        "c one wait of 5 ms",
        "c asyncsched, three stages",
        "d a list",
        "d a generator, in a thread",
    },
    "networks": {
        "a conv2d, asyncsched",
        "a max_pool2d, asyncsched",
        "a attention, asyncsched",
        "a layer_norm, asyncsched",
        "a gelu, asyncsched",
        "a softmax, asyncsched",
        "a cross_entropy, asyncsched",
        "b mlp, asyncsched",
        "b cnn, asyncsched",
    },
    "training": {
        "a NumPy, by hand",
        "a asyncsched",
        "b resident growth",
        "c tries, from half of what it takes unlimited",
        "c tries, from 1 MiB",
    },
    "loop_lag": {
        "asyncio: inline, p99",
        "asyncio: to_thread, p99",
        "asyncio: asyncsched, streams=1, p99",
        "asyncio: asyncsched, streams=2, p99",
    },
    "serving": {
        "a inline, time per answer",
        "a executor, p99",
        "a asyncsched, p99",
        "b overload, time per good answer",
        "b overload, p99 of the accepted",
        "b overload, p99 of refusals",
        "b overload, most tracked bytes",
        "b overload, resident set",
        "b overload, p99 of /healthz",
        "b overload, p99 of the loop's lag",
        "c left, items computed",
        "c left, in the ledgers",
        "d one tenant at 10x its share, p99 of the others",
        "e SIGTERM, requests without an answer",
        "e SIGTERM, until the process ended",
        "f rude clients, wrong statuses",
        "f rude clients, in the ledgers",
    },
}
ASKED = {"networks": 0, "training": 2, "pipeline": 3, "overhead": 9, "throughput": 2, "loop_lag": 2, "serving": 16}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bench", ROWS)
def test_the_table_has_its_rows(bench: str, tmp_path: Path) -> None:
    printed, saved = _run(bench, tmp_path / "results.json")
    heads, table = _parse(printed)
    assert heads[:5] == ["name", "median", "ratio", "min..max", "ratio to"]
    assert table.keys() >= ROWS[bench]
    for name, (value, ratio, span, to) in table.items():
        assert re.fullmatch(r"[\d.,]+(e[-+]\d+)? (us/op|ms|s|B/op|MiB|tries|count)", value), name
        low, high = map(float, span.split(".."))
        assert low <= float(ratio.removesuffix("x")) <= high, name
        assert to, name
    assert sum("NOT met" in line or ": met" in line for line in printed.splitlines()) >= ASKED[bench]
    _check_saved(bench, saved)
    assert {row["name"] for row in saved["rows"]} == table.keys()


def _check_saved(bench: str, saved: dict[str, Any]) -> None:
    assert saved["bench"] == bench
    assert saved["cpus"] >= 1
    assert saved.keys() >= {"python", "numpy", "platform", "date", "rows", "notes"}
    assert all(row.keys() >= {"name", "median", "unit", "ratios", "asked", "met"} for row in saved["rows"])


def _run(bench: str, path: Path) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, "-m", f"bench.{bench}", "--quick", "--json", str(path)]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that spin would take the processors from the other tests
    run = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads(path.read_text())


def _parse(printed: str) -> tuple[list[str], dict[str, list[str]]]:
    lines = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if "|" in line]
    heads, _, *rows = lines
    return heads, {row[0]: row[1:5] for row in rows}
