"""Every benchmark runs, and prints the rows it promises. What it measures is not judged here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# By benchmark and part of it.
ROWS = {
    "overhead": {
        "a": "NumPy inline; asyncsched; run_in_executor",
        "b": "run_in_executor; to_thread; asyncsched, await x + 1; asyncsched, await s.call(fn, x)",
        "c": "NumPy inline, one matmul; asyncsched, first of ten; one stream, first of ten",
        "d": (
            "inline, n=1,000; independent, issue, n=1,000; chain, issue to barrier, n=1,000"
            "; independent, no gc, issue, n=1,000"
        ),
        "e": "operator, handle kept; submit_nowait(fn, x), handle kept",
        "f": "import asyncsched",
    },
    "throughput": {
        "a": (
            "NumPy inline; asyncsched, streams=2; asyncsched, streams=1; run_in_executor, 2 workers"
            "; to_thread, 2 workers"
        ),
        "b": "training, max_ops=64; training, unbounded; tracked bytes, bounded; resident bytes, unbounded",
        "c": "streams=2, max_ops=1; streams=2, max_ops=None",
    },
    "pipeline": {
        "a": "asyncio.Queue(16); asyncio.Queue(1); asyncsched",
        "b": "asyncio.Queue(16), to_thread; asyncsched",
        "c": "one wait of 5 ms; asyncsched, three stages",
        "d": "a list; a generator, in a thread",
    },
    "networks": {
        "a": (
            "conv2d, asyncsched; max_pool2d, asyncsched; attention, asyncsched; layer_norm, asyncsched"
            "; gelu, asyncsched; softmax, asyncsched; cross_entropy, asyncsched"
        ),
        "b": "mlp, asyncsched; cnn, asyncsched",
    },
    "training": {
        "a": "NumPy, by hand; asyncsched",
        "b": "resident growth",
        "c": "tries, from half of what it takes unlimited; tries, from 1 MiB",
    },
    "replan": {
        "a": "loader, the smallest limit: time; loader, the smallest limit: peak; loader, what it takes: peak",
        "b": "training, the smallest limit: time; training, between: peak; training, what it takes: time",
    },
    "guests": {
        "a": "plain loop; asyncsched",
        "b": ("plain loop, decodes; DataLoader(num_workers=2); asyncsched, 2 threads decode; plain loop, data ready"),
    },
    "loop_lag": {
        "asyncio:": "inline, p99; to_thread, p99; asyncsched, streams=1, p99; asyncsched, streams=2, p99",
    },
    "serving": {
        "a": "inline, time per answer; executor, p99; asyncsched, p99",
        "b": (
            "overload, time per good answer; overload, p99 of the accepted; overload, p99 of refusals"
            "; overload, most tracked bytes; overload, resident set; overload, p99 of /healthz"
            "; overload, p99 of the loop's lag"
        ),
        "c": "left, items computed; left, in the ledgers",
        "d": "one tenant at 10x its share, p99 of the others",
        "e": "SIGTERM, requests without an answer; SIGTERM, until the process ended",
        "f": "rude clients, wrong statuses; rude clients, in the ledgers",
    },
}
NEEDED = {"guests": ("torch", "PIL", "sklearn")}
ASKED = {
    "guests": 2,
    "networks": 0,
    "training": 2,
    "replan": 0,
    "pipeline": 3,
    "overhead": 9,
    "throughput": 2,
    "loop_lag": 2,
    "serving": 16,
}


# One process for all: libraries that take seconds to load are loaded once.
RUN = """
import contextlib, runpy, sys

_, kept, *benches = sys.argv
for bench in benches:
    sys.argv = [bench, "--quick", "--json", f"{kept}/{bench}.json"]
    with open(f"{kept}/{bench}.txt", "w") as file, contextlib.redirect_stdout(file):
        runpy.run_module(f"bench.{bench}", run_name="__main__", alter_sys=True)
"""


@pytest.mark.timeout(300)
def test_the_tables_have_their_rows(tmp_path: Path) -> None:
    benches = [bench for bench in ROWS if all(find_spec(module) for module in NEEDED.get(bench, ()))]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that spin would take the processors from the other tests
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), *benches], cwd=ROOT, env=alone, stderr=subprocess.PIPE, text=True
    )
    assert run.returncode == 0, run.stderr
    for bench in benches:
        printed = (tmp_path / f"{bench}.txt").read_text(encoding="utf-8")
        _check(bench, printed, json.loads((tmp_path / f"{bench}.json").read_text(encoding="utf-8")))


def _check(bench: str, printed: str, saved: dict[str, Any]) -> None:
    heads, table = _parse(printed)
    assert heads[:5] == ["name", "median", "ratio", "min..max", "ratio to"]
    promised = {f"{part} {name}" for part, names in ROWS[bench].items() for name in names.split("; ")}
    assert table.keys() >= promised, bench
    for name, (value, ratio, span, to) in table.items():
        assert re.fullmatch(r"[\d.,]+(e[-+]\d+)? (us/op|ms|s|B/op|MiB|tries|count)", value), name
        low, high = map(float, span.split(".."))
        assert low <= float(ratio.removesuffix("x")) <= high, name
        assert to, name
    assert sum("NOT met" in line or ": met" in line for line in printed.splitlines()) >= ASKED[bench], bench
    _check_saved(bench, saved)
    assert {row["name"] for row in saved["rows"]} == table.keys(), bench


def _check_saved(bench: str, saved: dict[str, Any]) -> None:
    assert saved["bench"] == bench
    assert saved["cpus"] >= 1
    assert saved.keys() >= {"python", "numpy", "platform", "date", "rows", "notes"}
    assert all(row.keys() >= {"name", "median", "unit", "ratios", "asked", "met"} for row in saved["rows"])


def _parse(printed: str) -> tuple[list[str], dict[str, list[str]]]:
    lines = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if "|" in line]
    heads, _, *rows = lines
    return heads, {row[0]: row[1:5] for row in rows}
