"""Writes the README's table of what each bench measured from the results in bench/results: `python -m bench.readme`.

A cell is text with references in braces, `{file: row}` for a row's ratio, `{file: row, median}` for its median with
its unit: so no number of that table is typed.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from .measure import ROOT
from .results import RESULTS, number

README: Final = ROOT / "README.md"
BEGIN, END = "<!-- bench.readme: begin -->", "<!-- bench.readme: end -->"
_REFERENCE: Final = re.compile(r"\{(\w+): ([^}]+?)(; median)?\}")
_UNITS: Final = {"us/op": "us", "B/op": "bytes"}

TABLE: Final = (
    ("what", "ratio", "to"),
    ("---", "---", "---"),
    (
        "`y = x + 1` on shape (1, 2), 10,000 times without an await, then one await",
        "{overhead: a asyncsched} (an executor {overhead: a run_in_executor})",
        "NumPy inline",
    ),
    (
        "awaiting each of 10,000 such operations",
        "{overhead: b asyncsched, await x + 1} (asyncio), {overhead: b uvloop: asyncsched, await x + 1} (uvloop)",
        "`run_in_executor`",
    ),
    (
        "awaiting an operation of 8 KiB, of 64 KiB, which run at once",
        "{overhead: b asyncsched, 8 KiB}, {overhead: b asyncsched, 64 KiB} (asyncio),"
        " {overhead: b uvloop: asyncsched, 8 KiB}, {overhead: b uvloop: asyncsched, 64 KiB} (uvloop)",
        "`run_in_executor`",
    ),
    (
        "awaiting one of 128 KiB, which goes through a stream; `s.call` of a function that does nothing",
        "{overhead: b asyncsched, 128 KiB (a stream)}, {overhead: b asyncsched, await s.call(fn, x)} (asyncio),"
        " {overhead: b uvloop: asyncsched, 128 KiB (a stream)},"
        " {overhead: b uvloop: asyncsched, await s.call(fn, x)} (uvloop)",
        "`run_in_executor`",
    ),
    (
        "`x + 1` on shape (1000, 1000), 1,000 times, two streams",
        "{throughput: a asyncsched, streams=2} (one stream {throughput: a asyncsched, streams=1}, an executor with two"
        " workers {throughput: a run_in_executor, 2 workers})",
        "NumPy inline",
    ),
    ("the first of ten queued matmuls, awaited, `streams=1`", "{overhead: c one stream, first of ten}", "one matmul"),
    (
        "the synthetic training loop, `max_ops=64`",
        "{throughput: b training, max_ops=64} the time, {throughput: b tracked bytes, bounded} the tracked bytes",
        "unbounded",
    ),
    ("cost per tiny operation, a million against a thousand", "{overhead: d inline, n=1,000,000}", ""),
    (
        "cost per operation really pending, a million against a thousand: independent, a chain",
        "{overhead: d independent, issue to barrier, n=1,000,000}, {overhead: d chain, issue to barrier, n=1,000,000};"
        " with Python's collector off {overhead: d independent, no gc, issue to barrier, n=1,000,000}",
        "",
    ),
    (
        "bytes of descriptor per pending operation: an operator, a callable",
        "{overhead: e operator, handle dropped; median}, {overhead: e submit_nowait(fn, x), handle kept; median}",
        "",
    ),
    ("`import asyncsched`", "{overhead: f import asyncsched}", "`import numpy`"),
    (
        "a training step of the synthetic perceptron, with autograd and SGD",
        "{training: a asyncsched}; PyTorch {training: a PyTorch}",
        "NumPy written by hand",
    ),
    (
        "whole networks with AdamW: a perceptron, a small CNN",
        "{networks: b mlp, asyncsched}, {networks: b cnn, asyncsched}",
        "PyTorch",
    ),
    (
        "a PyTorch module trained by tasks: data ready; images decoded",
        "{guests: a asyncsched}; {guests: b asyncsched, 2 threads decode} (`DataLoader(num_workers=2)`"
        " {guests: b DataLoader(num_workers=2)})",
        "PyTorch's plain loop",
    ),
    (
        "growth of the resident set over 1,000 such steps, after the first 50",
        "{training: b resident growth; median}",
        "",
    ),
    (
        "a pipeline of three stages in threads, overhead per item",
        "{pipeline: b asyncsched, to torchdata}; {pipeline: b asyncsched} of asyncio queues with `to_thread`",
        "torchdata",
    ),
    ("three stages that each wait 5 ms", "{pipeline: c asyncsched, three stages}", "one such wait"),
    (
        "time per answer of a model of 5 ms a row, batched",
        "{serving: a asyncsched, time per answer} (an executor {serving: a executor, time per answer}, LitServe"
        " {serving: a litserve, time per answer})",
        "the handler inline",
    ),
    (
        "the same, 99th percentile of latency",
        "{serving: a asyncsched, p99} (LitServe {serving: a litserve, p99})",
        "an executor",
    ),
    (
        "three times as many requests as it can answer, for 60 s: time per good answer, p99 of the accepted",
        "{serving: b overload, time per good answer}, {serving: b overload, p99 of the accepted}; refusals in"
        " {serving: b overload, p99 of refusals; median}, `/healthz` in"
        " {serving: b overload, p99 of /healthz; median} (p99)",
        "at capacity",
    ),
    (
        "one tenant at ten times its share, p99 of the others",
        "{serving: d one tenant at 10x its share, p99 of the others}",
        "all at their share",
    ),
    (
        "Dask's graphs on `cluster.get`: processor time a task; memory and time of a mean over 96 blocks",
        "{dask_threads: a task, processor}; {dask_threads: roots, memory}, {dask_threads: roots, time}",
        "Dask's threads",
    ),
    (
        "on a cluster of two processes: a tiny product; twenty operations on 256 x 256, one by one, captured",
        "{cluster: a product, n=8; median}; {cluster: 20 operations one by one; median},"
        " {cluster: 20 operations as a captured step; median}",
        "",
    ),
    (
        "what `replan` predicts of a loader and a training at the limit between: time, peak",
        "{replan: a loader, between: time}, {replan: a loader, between: peak};"
        " {replan: b training, between: time}, {replan: b training, between: peak}",
        "what happens",
    ),
    (
        "lag of a 5 ms ticker beside saturated streams, 99th percentile",
        "{loop_lag: asyncio: asyncsched, streams=1, p99; median}, two streams"
        " {loop_lag: asyncio: asyncsched, streams=2, p99; median} (inline {loop_lag: asyncio: inline, p99; median},"
        " `to_thread` {loop_lag: asyncio: to_thread, p99; median})",
        "",
    ),
)


def table() -> str:
    """The table, and when and where its numbers were taken."""
    read = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    used: dict[str, Any] = {}

    def value(found: re.Match[str]) -> str:
        file, name, median = found.groups()
        used[file] = read[file]
        row = next(row for row in read[file]["rows"] if row["name"] == name)
        if median:
            return f"{number(row['median'])} {_UNITS.get(row['unit'], row['unit'])}"
        return f"{number(row['ratio'])}x"

    lines = [f"| {' | '.join(_REFERENCE.sub(value, cell) for cell in cells)} |" for cells in TABLE]
    dates = sorted(result["date"][:10] for result in used.values())
    cpus = sorted({result["cpus"] for result in used.values()})
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return "\n".join([*lines, "", f"Measured {when} on {' or '.join(map(str, cpus))} processors; medians of a run."])


def with_table(readme: str) -> str:
    """The README with that table between the marks."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text("utf-8")), "utf-8")
