"""`python -m asyncsched trace run.json`: where the time of a recorded run went, in words and as a page."""

from __future__ import annotations

import html
import json
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from .._arguments import counted, format_bytes, format_seconds
from .analysis import Analysis, analyse, memory_curve
from .recording import INLINE_STREAM, PHASES, Recording

_MOST_ROWS: Final = 12
_MOST_DRAWN: Final = 60_000  # slices, and points of the curve: more a browser draws slowly, and nobody tells apart
_TINY: Final = 30e-6  # seconds: an operation that takes about as long as to issue it and to hear of its end

_IDLE: Final = {
    "bytes": "tasks waited for bytes",
    "slots": "tasks waited for a slot",
    "inputs": "tasks waited for inputs that were being made",
    "handed over": "a task was on its way to its stream",
    "awaited": "nothing else had been submitted, and the program awaited a result",
    "loop": "nothing more had been submitted",
}
# Of each reason the sentence that goes on after "because", and the cure.
_VERDICTS: Final = {
    "bytes": (
        "tasks wait for bytes: raise max_bytes{limit}, or drop results sooner."
        " `python -m asyncsched replan` says what which limit would give."
    ),
    "slots": "tasks wait for a slot while those that have one wait for each other: raise max_ops.",
    "inputs": (
        "each task waits for the one before it: the critical path below is what it takes. Work that does not depend on"
        " it, submitted at the same time, would fill the streams."
    ),
    "handed over": "tasks are on their way from the loop to a stream: make each larger, or submit further ahead.",
    "awaited": (
        "the program awaits each result before it submits what comes next: submit ahead, and await late;"
        " `async with s.window(2)` bounds how far."
    ),
    "loop": (
        "nothing was submitted: the program was busy with something else, or waited for it"
        " (`asc.observe.LoopGuard` tells what blocks the loop)."
    ),
}


HELP: Final = "where the time of a recorded run went, with the bottleneck and its cure first"
PRINTS: Final = """\
To record one:  async with asyncsched.Trace("run.json"): ...

the operations, the longest running first:
  operation  its name
  on         its device, or "event loop" for what ran at once there
  count      how many ran
  running    how long their bodies ran, added up
  each       the same, on average
and how long each waited, on average, one after the other, from its submission on:
  queue      behind those before it in its scope
  slots      for one of max_ops
  bytes      for room under max_bytes
  inputs     admitted, until what it reads was there
  stream     until its stream came to it
  told       from its end until the event loop had taken that in
the streams:
  tasks      how many ran on it
  busy       the share of the time that it ran them
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", help="a file that asyncsched.Trace wrote")
    parser.add_argument("--html", metavar="PAGE", help="write a page with the timeline and the memory curve, too")


def report(arguments: Namespace) -> str:
    """What `python -m asyncsched trace` prints.

    Raises:
        OSError, ValueError: if the file cannot be read, or is no trace.
    """
    recording = Recording.read(arguments.trace)
    text = describe(recording, arguments.trace)
    if arguments.html:
        Path(arguments.html).write_text(page(recording, text), encoding="utf-8", errors="backslashreplace")
        text += f"\n\nThe picture: {arguments.html}"
    return text


def describe(recording: Recording, name: str) -> str:
    """Where the time went, and what to do about it."""
    if not recording.tasks:
        return f"{name}: no task ended while this trace was written."
    found = analyse(recording)
    parts = [_heading(recording, found, name), verdict(found), _idle(found), _path(found)]
    parts += [_table(found), _streams(found)]
    if not recording.complete:
        parts.append("The trace was cut off: the process was killed, or runs still. What had not ended is not in it.")
    if recording.lost:
        parts.append(f"{recording.lost:,} tasks were left out, since the disk could not keep up.")
    return "\n\n".join(part for part in parts if part)


def _heading(recording: Recording, found: Analysis, name: str) -> str:
    limits = recording.metadata
    devices = ", ".join(f"{d['name']} ({counted(d['streams'], 'stream')})" for d in limits.get("devices", ()))
    rows = f" and {counted(found.inline, 'inline row')}" if found.inline else ""
    bounds = f"max_ops {limits['max_ops'] or 'none'}, max_bytes {format_bytes(found.limit) if found.limit else 'none'}"
    return (
        f"{name}: {counted(found.tasks, 'task')}{rows} in {format_seconds(found.span)}, on {devices}; {bounds}."
        f" At most {format_bytes(found.peak)} were tracked."
    )


def verdict(found: Analysis) -> str:
    """The bottleneck in one sentence, and the cure."""
    if not found.tasks:
        return (
            "All ran inline, on the loop's thread: `graph = await s.capture(fn, x)` makes one task of many small rows."
        )
    if found.busy >= 0.85:
        top = found.operations[0]
        share = top.seconds["running"] / max(sum(one.seconds["running"] for one in found.operations), 1e-9)
        return (
            f"The streams are busy {found.busy:.0%} of the time, {share:.0%} of it with {top.name}: what is computed"
            " sets the pace. Compute less or in lower precision there, or give more processors or devices."
        )
    reason = max(found.idle, key=lambda why: found.idle[why])
    mean = sum(one.seconds["running"] for one in found.operations if one.device != "event loop") / found.tasks
    works = (found.loop or 0.0) >= 0.7 or mean < _TINY
    if works and reason in ("loop", "handed over", "awaited"):
        busy = "" if found.loop is None or found.loop < 0.5 else f", whose thread works {found.loop:.0%} of the time"
        return (
            f"The loop is the bottleneck{busy}: to issue operations of {format_seconds(mean)} each, and to take in"
            " their ends, takes longer than what they compute. Capture them, `graph = await s.capture(fn, x)`,"
            " which makes one task of many; or make each larger."
        )
    return (
        f"The streams are idle {1 - found.busy:.0%} of the time, mostly ({found.idle[reason]:.0%}) because"
        f" {_VERDICTS[reason].format(limit=f' above {format_bytes(found.limit)}' if found.limit else '')}"
    )


def _idle(found: Analysis) -> str:
    shares = [(share, _IDLE[why]) for why, share in found.idle.items() if share >= 0.005]
    shares.sort(reverse=True)
    rest = "; ".join(f"{share:.0%} {what}" for share, what in shares)
    loop = "" if found.loop is None else f" The loop's thread worked {found.loop:.0%} of the time."
    return f"Busy {found.busy:.0%}" + (f", and idle: {rest}." if rest else ".") + loop


def _path(found: Analysis) -> str:
    total = sum(seconds for *_, seconds in found.path)
    if not total:
        return ""
    by_name: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kind, name, seconds in found.path:
        by_name[kind, "" if kind == "loop" else name].append(seconds)
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))
    told = [
        f"{format_seconds(sum(times))} ({sum(times) / total:.0%}) "
        + ("in the loop and on the way to the streams" if kind == "loop" else f"{name}, {len(times):,} times")
        for (kind, name), times in longest[:4]
        if sum(times) >= 0.005 * total
    ]
    return f"The critical path, what had to come one after the other, took {format_seconds(total)}: {'; '.join(told)}."


def _table(found: Analysis) -> str:
    heads = ("operation", "on", "count", "running", "each", "queue", "slots", "bytes", "inputs", "stream", "told")
    rows: list[Sequence[str]] = [heads]
    for one in found.operations[:_MOST_ROWS]:
        each = {phase: format_seconds(one.seconds[phase] / one.count) for phase in PHASES}
        waits = [each[phase] if one.seconds[phase] else "" for phase in heads[5:]]
        running = format_seconds(one.seconds["running"])
        rows.append((one.name, one.device, f"{one.count:,}", running, each["running"], *waits))
    more = len(found.operations) - _MOST_ROWS
    under = f"\n... and {more} more" if more > 0 else ""
    said = "From `queue` on: what one waited for, on average, one after the other, from its submission to its end."
    return _aligned(rows) + under + "\n" + said


def _streams(found: Analysis) -> str:
    rows = [("stream", "tasks", "busy")]
    rows += [(stream, f"{count:,}", f"{busy:.1%}") for _, stream, busy, count in found.streams]
    return _aligned(rows) if len(rows) > 1 else ""


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[row[0].ljust(first), *map(str.rjust, row[1:], others)] for row in rows]
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


# -- the page ---------------------------------------------------------------------------------------------------------


def page(recording: Recording, text: str) -> str:
    """The page as text: `text` above, the timeline and the memory curve below."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = json.dumps(_data(recording), separators=(",", ":")).replace("</", "<\\/")
    return template.replace("@TEXT@", html.escape(text)).replace("@DATA@", data)


def _data(recording: Recording) -> dict[str, Any]:
    ran = [task for task in recording.tasks if task.began is not None and task.ended is not None]
    ran.sort(key=lambda task: (task.began or 0.0) - (task.ended or 0.0))
    shown = sorted(ran[:_MOST_DRAWN], key=lambda task: task.began or 0.0)  # without the shortest
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
    """The curve with no more points than are shown: of each group of points the highest and the last."""
    group = -(-2 * len(curve) // _MOST_DRAWN)
    if group <= 2:
        return curve
    parts = [curve[i : i + group] for i in range(0, len(curve), group)]
    return [point for part in parts for point in (max(part, key=itemgetter(1)), part[-1])]
