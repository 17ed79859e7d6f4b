"""`python -m asyncsched trace run.json`: the use of time in a recorded run, in words and as a page."""

from __future__ import annotations

import html
import json
import re
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from .._arguments import counted, format_bytes, format_seconds, printable
from .._system import write_text
from ..pictures.record import Table
from ..runtime.runtime import INLINE_STREAM
from .analysis import Analysis, Group, analyse, memory_curve
from .recording import PHASES, Recording

Spent = Mapping[str, tuple[float, str]]  # seconds by name, and a remark

_MOST_ROWS: Final = 12
_MOST_DRAWN: Final = 60_000  # slices, and points of the curve: more are slow to draw, and look the same
_TINY: Final = 30e-6  # seconds: an operation that takes about as long as issuing it and taking in its end

# The state of the streams, by `WHY`.
_IDLE: Final = {
    "busy": "computed",
    "bytes": "idle: tasks waited for bytes (max_bytes)",
    "slots": "idle: tasks waited for a slot (max_ops)",
    "inputs": "idle: tasks waited for inputs that were being made",
    "handed over": "idle: a task was on its way to its stream",
    "awaited": "idle: nothing else had been submitted, and the program awaited a result",
    "window": "idle: nothing else had been submitted, and the program waited for an earlier iteration",
    "loop": "idle: nothing more had been submitted",
}
# For each reason the text after "because", and the cure.
_VERDICTS: Final = {
    "bytes": (
        "tasks wait for bytes: raise max_bytes{limit}, or drop results sooner."
        " `python -m asyncsched replan` says what each limit would give."
    ),
    "slots": "tasks wait for a slot while those that have one wait for each other: raise max_ops.",
    "inputs": (
        "each task waits for the one before it: the critical path below has these tasks. Work that does not depend on"
        " it, submitted at the same time, would fill the streams."
    ),
    "handed over": "tasks are on their way from the loop to a stream: make each larger, or submit further ahead.",
    "awaited": (
        "the program awaits each result before it submits the next task: submit ahead, and await late;"
        " `w = s.window(2)` before a loop and `async with w:` in it bound how far."
    ),
    "window": (
        "the program waits for an earlier iteration of its window, and those since have no more tasks that could run:"
        " if an iteration does not need the results of the one before, a deeper window and later awaits fill the"
        " streams. If it does, as in training, fewer streams do as much; let each task do more, as with larger batches."
    ),
    "loop": (
        "nothing was submitted: the program was busy with something else, or waited for it"
        " (`asc.observe.LoopGuard` tells what blocks the loop)."
    ),
}


HELP: Final = "where the time of a recorded run went, with the bottleneck and its cure first"
_COLUMNS: Final = "".join(f"  {phase:9}  {words}\n" for phase, words in PHASES.items() if phase != "running")
PRINTS: Final = f"""\
To record one:  async with asyncsched.Trace("run.json"): ...

The bottleneck; what limits the run, and what failed; then tables sorted by share, of operations, of scopes (numbers in
their names as N), of tenants:
  operation  its name
  on         its device, or "event loop" for what ran at once there
  share      of the time of all bodies
  running    how long their bodies ran, added up
  count      how many ran
  each       how long one ran, on average
and the other phases of one, on average, one after the other, from its submission on:
{_COLUMNS}\
the waits of all tasks together; the critical path, which has the tasks that had to come one after the other;
the streams:
  busy       the share of the time that it ran tasks
  time       how long that was
  tasks      how many ran on it
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", help="a file that asyncsched.Trace wrote")
    parser.add_argument("--html", metavar="PAGE", help="write a page with the timeline and the memory curve, too")


def report(arguments: Namespace) -> str:
    """The output of `python -m asyncsched trace`.

    Raises:
        OSError, ValueError: if the file cannot be read, or is no trace.
    """
    recording = Recording.read(arguments.trace)
    found = findings(recording, arguments.trace)
    text = describe(*found)
    if arguments.html:
        write_text(arguments.html, page(recording, *found))
        text += f"\n\nThe picture: {arguments.html}"
    return text


def describe(said: Sequence[str], tables: Sequence[Table]) -> str:
    """Findings as text."""
    return "\n\n".join([*said, *[table.text() for table in tables]])


def findings(recording: Recording, name: str) -> tuple[list[str], list[Table]]:
    """The recording, the bottleneck, and what is missing; then tables. The limits of the run come first."""
    if not recording.tasks:
        return [f"{name}: no task ended while this trace was written."], []
    found = analyse(recording)
    said = [printable(text) for text in (_heading(recording, found, name), verdict(found))]
    if not recording.complete:
        said.append("The trace was cut off: the process was killed, or still runs. Unfinished tasks are not in it.")
    if recording.lost:
        said.append(f"{recording.lost:,} tasks were left out, since the disk could not keep up.")
    tables = [
        _limits(found), _unfinished(recording), _groups("Operations", ("operation", "on"), found.operations),
        _groups("Scopes", ("scope",), found.scopes), _groups("Tenants", ("tenant",), found.tenants), _waits(found),
        _path(found), _streams(found),
    ]  # fmt: skip
    return said, [_printable(table) for table in tables if table.rows]


def _printable(table: Table) -> Table:
    """With names that stay in their cells: the trace may be from anywhere."""
    return replace(table, rows=[tuple([printable(cell) for cell in row]) for row in table.rows])


def _heading(recording: Recording, found: Analysis, name: str) -> str:
    limits = recording.metadata
    devices = ", ".join(f"{d['name']} ({counted(d['streams'], 'stream')})" for d in limits.get("devices", ()))
    inline = f" and {counted(found.inline, 'inline operation')}" if found.inline else ""
    bounds = f"max_ops {limits['max_ops'] or 'none'}, max_bytes {format_bytes(found.limit) if found.limit else 'none'}"
    return (
        f"{name}: {counted(found.tasks, 'task')}{inline} in {format_seconds(found.span)}, on {devices}; {bounds}."
        f" At most {format_bytes(found.peak)} were tracked."
    )


def verdict(found: Analysis) -> str:
    """The bottleneck in one sentence, and the cure."""
    if not found.tasks:
        return "All ran inline, on the loop's thread: `graph = await s.capture(fn, x)` makes one task of many."
    if found.busy >= 0.85:
        top = found.operations[0]
        share = top.seconds["running"] / max(sum(one.seconds["running"] for one in found.operations), 1e-9)
        return (
            f"The streams are busy {found.busy:.0%} of the time, {share:.0%} of it with {top.names[0]}: the"
            " computation sets the pace. Compute less or in lower precision there, or give more processors or devices."
        )
    reason = max(found.idle, key=lambda why: found.idle[why])
    mean = sum(one.seconds["running"] for one in found.operations if INLINE_STREAM not in one.names) / found.tasks
    works = (found.loop or 0.0) >= 0.7 or mean < _TINY
    if works and reason in ("loop", "handed over", "awaited", "window"):
        busy = "" if found.loop is None or found.loop < 0.5 else f", whose thread works {found.loop:.0%} of the time"
        return (
            f"The loop is the bottleneck{busy}: issuing operations of {format_seconds(mean)} each, and taking in their"
            " ends, takes longer than computing them. Capture them, `graph = await s.capture(fn, x)`, which makes one"
            " task of many; or make each larger."
        )
    return (
        f"The streams are idle {1 - found.busy:.0%} of the time, mostly ({found.idle[reason]:.0%}) because"
        f" {_VERDICTS[reason].format(limit=f' above {format_bytes(found.limit)}' if found.limit else '')}"
    )


def _limits(found: Analysis) -> Table:
    spent = {_IDLE[why]: (share * found.span, "") for why, share in ({"busy": found.busy} | found.idle).items()}
    loop = "" if found.loop is None else f"The loop's thread worked {found.loop:.0%} of the time."
    return _shares("What limits the run", ("the streams", "share", "time", ""), found.span, spent, loop)


def _shares(title: str, heads: Sequence[str], whole: float, spent: Spent, note: str = "") -> Table:
    """For each name its share of the whole, its seconds, and the remark; the longest first."""
    longest = sorted([(seconds, name, more) for name, (seconds, more) in spent.items() if seconds], reverse=True)
    rows = [(name, f"{seconds / whole:.1%}", format_seconds(seconds), more) for seconds, name, more in longest]
    return Table(title, heads, rows[:_MOST_ROWS], note=note)


def _groups(title: str, names: Sequence[str], groups: Sequence[Group]) -> Table:
    """The groups that took longest. A single group is left out, except for operations."""
    if len(groups) == 1 and len(names) == 1:
        groups = []
    total, waits = sum(one.seconds["running"] for one in groups) or 1.0, [name for name in PHASES if name != "running"]
    rows = []
    for one in groups[:_MOST_ROWS]:
        running, each = one.seconds["running"], [one.seconds[phase] / one.count for phase in ("running", *waits)]
        told = [format_seconds(seconds) if seconds else "" for seconds in (running, *each)]
        rows.append(
            (*[name or "(none)" for name in one.names], f"{running / total:.1%}", told[0], f"{one.count:,}", *told[1:])
        )
    more = len(groups) - _MOST_ROWS
    note = (f"... and {more:,} more. " if more > 0 else "") + "Each: its time, and what it waited for before and after."
    return Table(title, (*names, "share", "running", "count", "each", *waits), rows, len(names), note)


def _waits(found: Analysis) -> Table:
    count = sum(one.count for one in found.operations) or 1  # a trace of reserves alone has none
    seconds = {phase: sum(one.seconds[phase] for one in found.operations) for phase in PHASES}
    spent = {words: (seconds[phase], format_seconds(seconds[phase] / count)) for phase, words in PHASES.items()}
    heads = ("a task", "share", "time", "each")
    return _shares("Waits, of all tasks from submission to end", heads, sum(seconds.values()), spent)


def _path(found: Analysis) -> Table:
    by_name: dict[str, list[float]] = defaultdict(list)
    for kind, name, seconds in found.path:
        by_name["in the loop, and on the way to the streams" if kind == "loop" else name].append(seconds)
    spent = {name: (sum(times), f"{len(times):,}") for name, times in by_name.items()}
    whole = sum(seconds for *_, seconds in found.path)
    heads = ("tasks that had to come one after the other", "share", "time", "count")
    return _shares(f"The critical path, {format_seconds(whole)}", heads, whole, spent)


def _streams(found: Analysis) -> Table:
    spent = {name: (busy * found.span, f"{tasks:,}") for name, busy, tasks in found.streams}
    return _shares("Streams", ("stream", "busy", "time", "tasks"), found.span, spent)


def _unfinished(recording: Recording) -> Table:
    found = Counter((task.name, task.state, task.site) for task in recording.tasks if task.state != "done")
    rows = [(*names, f"{count:,}") for names, count in found.most_common(_MOST_ROWS)]
    return Table("Not done", ("operation", "state", "line", "count"), rows, names=3)


# -- the page ---------------------------------------------------------------------------------------------------------


def page(recording: Recording, said: Sequence[str], tables: Sequence[Table]) -> str:
    """The page as text: the bottleneck above, then the timeline and the memory curve, then the tables."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = json.dumps(_data(recording), separators=(",", ":")).replace("<", "\\u003c")  # inside <script>
    texts = {
        "@SAID@": "".join(f"<p>{html.escape(text)}</p>" for text in said),
        "@TABLES@": "".join(table.html() for table in tables),
        "@DATA@": data,
    }
    return re.sub("@[A-Z]+@", lambda found: texts[found[0]], template)


def _data(recording: Recording) -> dict[str, Any]:
    ran = [task for task in recording.tasks if task.began is not None and task.ended is not None]
    ran.sort(key=lambda task: (task.began or 0.0) - (task.ended or 0.0))
    shown = sorted(ran[:_MOST_DRAWN], key=lambda task: task.began or 0.0)  # without the shortest ones
    first = min((task.submitted for task in recording.tasks), default=0.0)
    last = max((task.done for task in recording.tasks), default=1.0)
    tracks = sorted({task.stream for task in ran}, key=lambda name: (name == INLINE_STREAM, name))
    names = sorted({task.name for task in ran})
    sites = sorted({task.site for task in ran})
    numbers = [{text: i for i, text in enumerate(texts)} for texts in (tracks, names, sites)]
    slices = [
        [
            numbers[0][task.stream], numbers[1][task.name], _us(task.began, first), _us(task.ended, first),
            _us(task.submitted, first), _us(task.launched, first), task.seq, task.kept, numbers[2][task.site],
        ]
        for task in shown
    ]  # fmt: skip
    return {
        "tracks": tracks,
        "names": names,
        "sites": sites,
        "slices": slices,
        "leftOut": len(ran) - len(shown),
        "memory": [[_us(when, first), used] for when, used in _thinned(memory_curve(recording))],
        "limit": recording.metadata.get("max_bytes"),
        "span": _us(last, first),
    }


def _us(when: float | None, first: float) -> float:
    return round(((when or first) - first) * 1e6, 1)


def _thinned(curve: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The curve with as many points as are shown: of each group of points the highest and the last."""
    group = -(-2 * len(curve) // _MOST_DRAWN)
    if group <= 2:
        return curve
    parts = [curve[i : i + group] for i in range(0, len(curve), group)]
    return [point for part in parts for point in (max(part, key=itemgetter(1)), part[-1])]
