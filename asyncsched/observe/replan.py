"""`python -m asyncsched replan run.json`: a recorded run under other limits and on other streams.

A table of replays in virtual time: how long each takes, its most bytes, how long the program waited for room. Then the
smallest limit under which it finishes, and the gain from twice the recorded limit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .._arguments import counted, format_bytes, parse_bytes
from .recording import Recording
from .replay import Outcome, Program

_CLOSE: Final = 1.01  # the smallest limit is found to within 1%
_MOST: Final = 256  # streams of a device
_ASSUMED: Final = "Assumed: each body takes as long as it took, and the program does the same things in the same order."
_SHARED: Final = (
    "On the CPU streams share processors and BLAS threads, and help with each other's large operations:"
    " with another number of them bodies take other times than assumed."
)


HELP: Final = "how a recorded run would go under other limits and on other streams"
PRINTS: Final = """\
To record one:  async with asyncsched.Trace("run.json"): ...

A row for each replay, in virtual time, then the smallest limit that finishes, and the gain from twice the
recorded one:
  streams          of each device
  max_bytes        the limit that is tried
  time             from the first submission to the last end
  peak tracked     the most bytes that were tracked
  waited for room  how long the program waited to be admitted
  streams busy     the share of the time that the streams ran, on average
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", help="a file that asyncsched.Trace wrote")
    parser.add_argument(
        "--max-bytes",
        metavar="LIMITS",
        help='to try: "64MiB..1GiB" (doubling), or "64MiB,100MiB"; default around the peak',
    )
    parser.add_argument("--streams", metavar="COUNTS", help='streams of each device: "2", "1..4"; default as recorded')


def report(options: argparse.Namespace) -> str:
    """The output of the command.

    Raises:
        ValueError, OSError: for a file that is no trace, or a range that is none.
    """
    program = Program(Recording.read(options.trace))
    limits = limits_of(options.max_bytes) if options.max_bytes else _around(program)
    streams = counts_of(options.streams) if options.streams else [streams_of(program)]
    outcomes = [_run(program, limit, number) for number in streams for limit in limits]
    lines = [_recorded(program), "", *_table(outcomes), "", *[_smallest(program, count) for count in streams]]
    lines += [more for count in streams if (more := _twice(program, count)) is not None]
    lines.append(_ASSUMED)
    if set(streams) != {streams_of(program)}:
        lines.append(_SHARED)
    if program.recording.lost or not program.recording.complete:
        lines.append("This trace is not complete. Only the tasks in it were replayed.")
    return "\n".join(lines)


def smallest_limit(program: Program, streams: int) -> int:
    """The smallest limit in bytes under which a program finishes, from above, to within 1%."""
    high = max(1, _run(program, None, streams).peak_bytes)
    low = max(1, *[task.cost for task in program.recording.tasks])
    if _run(program, low, streams).finished:
        return low
    while high > low * _CLOSE and high - low > 1:
        middle = int((low * high) ** 0.5) if high > 2 * low else (low + high) // 2
        low, high = (low, middle) if _run(program, middle, streams).finished else (middle, high)
    return high


def limits_of(text: str) -> list[int | None]:
    """Limits in bytes: a list, or a range of which each is twice the one before."""
    if ".." not in text:
        return [parse_bytes(part.strip(), "--max-bytes") for part in text.split(",")]
    first, last = (parse_bytes(part.strip(), "--max-bytes") for part in text.split("..", 1))
    if not 0 < first <= last:
        raise ValueError(f"--max-bytes {text}: the range goes from the smaller limit to the larger, as in 64MiB..1GiB")
    limits: list[int | None] = []
    while first < last:
        limits.append(first)
        first *= 2
    return [*limits, last]


def counts_of(text: str) -> list[int]:
    """Numbers of streams: one, a list, or a range."""
    first, dots, last = text.partition("..")
    try:
        found = [*range(int(first), int(last) + 1)[: _MOST + 1]] if dots else [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or max(found) > _MOST:
        raise ValueError(f"--streams {text}: numbers from 1 to {_MOST}, as in 2, or 1..4")
    return found


def _run(program: Program, limit: int | None, streams: int) -> Outcome:
    return program.run(replace(program.recording.limits, max_bytes=limit), streams)


def streams_of(program: Program) -> int:
    """The number of compute streams on which it ran, for each device."""
    tasks = program.recording.tasks
    used = {(task.device, task.stream) for task in tasks if task.stream and not task.copies and not task.on_loop}
    return max(1, len(used) // max(1, len({device for device, _ in used})))


def _around(program: Program) -> list[int | None]:
    """Limits from an eighth of the peak without a limit up to that peak, and none."""
    peak = _run(program, None, streams_of(program)).peak_bytes
    return [*[max(1, peak * part // 8) for part in (1, 2, 4, 8)], None]


def _recorded(program: Program) -> str:
    recording = program.recording
    seconds = max(task.done for task in recording.tasks) - min(task.submitted for task in recording.tasks)
    limit = recording.limits.max_bytes
    return (
        f"recorded: {len(recording.tasks):,} tasks in {seconds:.3f} s, max_bytes {_bound(limit)},"
        f" {counted(streams_of(program), 'stream')}; the same replayed:"
        f" {_run(program, limit, streams_of(program)).seconds:.3f} s"
    )


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    lines = ["streams    max_bytes        time   peak tracked   waited for room   streams busy"]
    for o in outcomes:
        head = f"{o.streams:7}   {_bound(o.limits.max_bytes):>10}"
        if o.finished:
            peak = format_bytes(o.peak_bytes)
            lines.append(f"{head}   {o.seconds:7.3f} s   {peak:>12}   {o.waited:13.3f} s   {o.busy:12.0%}")
        else:
            lines.append(f"{head}   does not finish: {o.why}")
    return lines


def _smallest(program: Program, streams: int) -> str:
    limit = smallest_limit(program, streams)
    found = _run(program, limit, streams)
    on = counted(streams, "stream")
    return (
        f"The smallest limit that finishes, on {on}: {format_bytes(limit)} ({limit:,} bytes), in {found.seconds:.3f} s."
    )


def _twice(program: Program, streams: int) -> str | None:
    limit = program.recording.limits.max_bytes
    if limit is None:
        return None
    now, then = (_run(program, nbytes, streams) for nbytes in (limit, 2 * limit))
    if not now.finished:
        return None
    gain = 1 - then.seconds / now.seconds
    bought = f"{gain:.0%} of the time" if gain >= 0.01 else "nothing: the time is spent elsewhere"
    on = counted(streams, "stream")
    return f"On {on} twice the recorded limit ({format_bytes(2 * limit)}) would buy {bought}."


def _bound(nbytes: int | None) -> str:
    return "none" if nbytes is None else format_bytes(nbytes)
