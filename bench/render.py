"""Renders what is in bench/results: `python -m bench.render`.

The tables of all subjects go into bench/README.md, two into the README (the peers, and what each bench found), and
pictures beside the results. No number is typed.
"""

from __future__ import annotations

import re
from typing import Any, Final

from . import peers
from .harness.pictures import draw_bars, draw_growth
from .harness.results import RESULTS, amount, contestants, load, markdown, missed, notes, number, setting, tables
from .harness.rows import ROOT, SUBJECTS, Result

README: Final = ROOT / "README.md"
ALL: Final = ROOT / "bench" / "README.md"
_REFERENCE: Final = re.compile(r"\{(\w+)\.([\w-]+) ([^};]+)(; value)?\}")
_ISSUE_LESS = "Dask, distributed and Ray issue a tenth of the smallest operations: ratios are of the time of one"
_HEAD = """# What the benches measured

`python -m bench` measures all of it, `python -m bench SUBJECT` or `SUBJECT.ROW` some, `--help` says how, and `python -m
bench.render` writes this page and the pictures. Each *x* is a ratio to the first column that has a number in its row,
taken round by round in one run; a dash says that there is no number, for a reason that is told below. What stands in
brackets is a target.

Contestants take turns, each in a process of its own with the BLAS kernels of the processor, in rounds of 0.2 s or more
with pauses of 120 ms, so that no threads of the last one spin into the next.

`python -m bench --against REV [ROWS]` measures this working tree beside another revision, with the spread of each
ratio: that is how a change is judged. `heart` has what the scheduler itself costs, `beside` every kind of work.
"""

# What each bench found, for the README: `{subject.row column}` is a cell's ratio, with `; value` what was measured.
FOUND: Final = (
    (
        "`y = x + 1` on shape (1, 2), 10,000 times without an await, then one barrier",
        "{overhead.tiny asyncsched} (an executor {overhead.tiny executor})",
        "NumPy inline",
    ),
    (
        "awaiting each of 10,000 such operations",
        "{overhead.awaited asyncsched} (asyncio), {overhead.awaited-uvloop asyncsched} (uvloop)",
        "`run_in_executor`",
    ),
    (
        "awaiting an operation of 8 KiB, of 64 KiB, which run at once",
        "{overhead.awaited 8 KiB}, {overhead.awaited 64 KiB} (asyncio),"
        " {overhead.awaited-uvloop 8 KiB}, {overhead.awaited-uvloop 64 KiB} (uvloop)",
        "`run_in_executor`",
    ),
    (
        "awaiting one of 128 KiB, which goes through a stream; `s.call` of a function that does nothing",
        "{overhead.awaited 128 KiB (a stream)}, {overhead.awaited s.call} (asyncio),"
        " {overhead.awaited-uvloop 128 KiB (a stream)},"
        " {overhead.awaited-uvloop s.call} (uvloop)",
        "`run_in_executor`",
    ),
    (
        "`x + 1` on shape (1000, 1000), 1,000 times, two streams",
        "{throughput.additions two streams} (one stream {throughput.additions one stream}, an executor with two"
        " workers {throughput.additions run_in_executor})",
        "NumPy inline",
    ),
    (
        "the first of ten queued matmuls, awaited, `streams=1`",
        "{overhead.first one stream, first of ten}",
        "one matmul",
    ),
    (
        "the synthetic training loop, `max_ops=64`",
        "{throughput.training asyncsched} the time, {throughput.tracked asyncsched} the tracked bytes",
        "unbounded",
    ),
    ("cost per tiny operation, a million against a thousand", "{overhead.issued 1,000,000}", ""),
    (
        "cost per operation really pending, a million against a thousand: independent, a chain",
        "{overhead.pending 1,000,000}, {overhead.chain 1,000,000};"
        " with Python's collector off {overhead.no-gc 1,000,000}",
        "",
    ),
    (
        "bytes of descriptor per pending operation: an operator, a callable",
        "{overhead.bytes handle dropped; value}, {overhead.bytes submit_nowait(fn, x); value}",
        "",
    ),
    ("`import asyncsched`", "{overhead.import asyncsched}", "`import numpy`"),
    (
        "a training step of the synthetic perceptron, with autograd and SGD",
        "{training.step asyncsched}; PyTorch {training.step PyTorch}",
        "NumPy written by hand",
    ),
    (
        "a whole network with AdamW, a perceptron",
        "{networks.mlp asyncsched}",
        "PyTorch",
    ),
    (
        "a PyTorch module trained by tasks: data ready; images decoded",
        "{guests.ready asyncsched}; {guests.decoded asyncsched} (`DataLoader(num_workers=2)`"
        " {guests.decoded DataLoader(num_workers=2)})",
        "PyTorch's plain loop",
    ),
    (
        "growth of the resident set over 1,000 such steps, after the first 50",
        "{training.growth asyncsched; value}",
        "",
    ),
    (
        "a pipeline of three stages in threads, overhead per item",
        "{pipeline.torchdata asyncsched}; {pipeline.threads asyncsched} of asyncio queues with `to_thread`",
        "torchdata",
    ),
    ("three stages that each wait 5 ms", "{pipeline.waits asyncsched}", "one such wait"),
    (
        "time per answer of a model of 5 ms a row, batched",
        "{serving.capacity-time asyncsched} (an executor {serving.capacity-time executor}, LitServe"
        " {serving.capacity-time litserve})",
        "the handler inline",
    ),
    (
        "the same, 99th percentile of latency",
        "{serving.capacity-p99 asyncsched} (LitServe {serving.capacity-p99 litserve})",
        "an executor",
    ),
    (
        "three times as many requests as it can answer, for 60 s: time per good answer, p99 of the accepted",
        "{serving.overload-time asyncsched}, {serving.overload-p99 asyncsched}; refusals in"
        " {serving.overload-refusals asyncsched; value}, `/healthz` in"
        " {serving.overload-healthz asyncsched; value} (p99)",
        "at capacity",
    ),
    (
        "one tenant at ten times its share, p99 of the others",
        "{serving.tenants asyncsched}",
        "all at their share",
    ),
    (
        "Dask's graphs on `cluster.get`: processor time a task; memory and time of a mean over 96 blocks",
        "{dask_threads.processors asyncsched}; {dask_threads.memory asyncsched}, {dask_threads.roots asyncsched}",
        "Dask's threads",
    ),
    (
        "on a cluster of two processes: a tiny product; twenty operations on 256 x 256, one by one, captured",
        "{cluster.product-8 cluster; value}; {cluster.one-by-one cluster; value}, {cluster.captured cluster; value}",
        "",
    ),
    (
        "what `replan` predicts of a loader and a training at the limit between: time, peak",
        "{replan.loader-between-time predicted}, {replan.loader-between-peak predicted};"
        " {replan.training-between-time predicted}, {replan.training-between-peak predicted}",
        "what happens",
    ),
    (
        "lag of a 5 ms ticker beside saturated streams, 99th percentile",
        "{loop_lag.asyncio one stream; value}, two streams"
        " {loop_lag.asyncio two streams; value} (inline {loop_lag.asyncio inline; value},"
        " `to_thread` {loop_lag.asyncio to_thread; value})",
        "",
    ),
)


def main() -> None:
    README.write_text(rendered(README.read_text("utf-8")), "utf-8")
    ALL.write_text(page(), "utf-8")
    draw_bars(RESULTS / "peers.png", _load("peers"), "Peers beside NumPy inline", ("asyncsched", "one stream"))
    ours = ("asyncsched", "one stream", "with numba")
    draw_bars(RESULTS / "beside.png", _load("beside"), "Beside what one would pick instead", ours)
    draw_growth(RESULTS / "growth.png", _load("growth"))


def _load(subject: str) -> Result:
    return load(RESULTS / f"{subject}.json")


def rendered(readme: str) -> str:
    """The README with both tables, each between its two marks."""
    for name, text in (("peers", peers_table(_load("peers"))), ("found", found_table())):
        begin, end = f"<!-- bench.render: {name} -->", f"<!-- bench.render: end of {name} -->"
        before, rest = readme.split(begin)
        readme = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    return readme


def peers_table(result: Result) -> str:
    (table,) = tables(result)
    heads = ["what", *[column for column in peers.PEERS if column in table[0]]]
    text = markdown([[line[table[0].index(head)] for head in heads] for line in table])
    missing = "".join(f" {peer}: {reason}." for peer, reason in result["missing"].items())
    why = "A dash: no number, for the reason in `bench/results/peers.json`."
    return f"{text}\n\n{setting(result)}. {contestants(result)}. {_ISSUE_LESS}. {why}{missing}"


def found_table() -> str:
    """What each bench found, and when and where."""
    used: dict[str, Result] = {}

    def value(found: re.Match[str]) -> str:
        subject, key, column, value = found.groups()
        result = used.setdefault(subject, _load(subject))
        row = next(row for row in result["rows"] if row["key"] == key)
        cell: dict[str, Any] = row["cells"][column]
        return amount(cell["value"], row["unit"]) if value else f"{number(cell['ratio'])}x"

    text = markdown([["what", "ratio", "to"], *[[_REFERENCE.sub(value, cell) for cell in cells] for cells in FOUND]])
    dates = sorted(result["date"][:10] for result in used.values())
    cpus = sorted({result["machine"]["cpus"] for result in used.values()})
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return f"{text}\n\nMeasured {when} on {' or '.join(map(str, cpus))} processors; medians of a run."


def page() -> str:
    """All tables of all subjects that have results, each with its picture."""
    parts = [_HEAD]
    for path in sorted(RESULTS.glob("*.json"), key=lambda path: [*SUBJECTS].index(path.stem.partition("-")[0])):
        result = load(path)
        parts.append(f"## {path.stem}\n\n{SUBJECTS[result['bench']]}. {setting(result)}.\n")
        parts += [markdown(table) + "\n" for table in tables(result)]
        if path.with_suffix(".png").exists():
            parts.append(f"![{path.stem}](results/{path.stem}.png)\n")
        if said := [f"{contestants(result)}."] * bool(result["contestants"]) + _lines(result):
            parts.append("\n".join(f"- {line}" for line in said) + "\n")
    return "\n".join(parts)


def _lines(result: Result) -> list[str]:
    return [*[f"missed: {line}" for line in missed(result)], *notes(result)]


if __name__ == "__main__":
    main()
