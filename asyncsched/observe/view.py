"""Snapshots as pictures for a terminal of any size, by rich."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

from .._arguments import format_bytes, format_seconds
from .summary import Snapshot

Row = Sequence[Text]
_BAR = 20  # columns


def draw(now: Snapshot, before: Snapshot | None, width: int, height: int, late: float = 0.0) -> Text:
    """A snapshot, in at most `height` lines.

    Args:
        before: an earlier snapshot, for shares and rates; None for those of the whole time.
        late: seconds by which the next snapshot is late.
    """
    bar = max(4, min(_BAR, width // 5))
    sections: list[tuple[str, list[Row]]] = [
        ("streams", _streams(now, before, bar)),
        (f"operations ({len(now.operations)})", _operations(now, bar)),
        (f"waiting ({now.waiting_count})", _waiting(now)),
        (f"scopes ({now.scope_count})", _scopes(now)),
        ("failures", [[Text(_short(failure), "red")] for failure in reversed(now.failures)]),
    ]
    lines = [_head(now, before, late), *_lines(_gauges(now, bar), width)]
    for (title, rows), count in zip(
        sections, allot([len(rows) for _, rows in sections], height - len(lines)), strict=True
    ):
        if count:
            lines += [Text(title, "bold"), *_lines(rows[:count], width)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines[:height])


def allot(wanted: Sequence[int], room: int) -> list[int]:
    """How many of its rows each section shows: in turn one more, while there is room for the row and the title."""
    given, before = [0] * len(wanted), -1
    while sum(given) != before:
        before = sum(given)
        for i, most in enumerate(wanted):
            lines = 1 if given[i] else 2
            if given[i] < most and lines <= room:
                given[i] += 1
                room -= lines
    return given


def _head(now: Snapshot, before: Snapshot | None, late: float) -> Text:
    name = re.sub(r";.*", ")", now.name)
    text = Text.assemble(("asyncsched ", "bold"), f"{name}  {now.seconds:.1f} s ")
    ended = _ended(now) - (0 if before is None else _ended(before))
    seconds = now.seconds - (0.0 if before is None else before.seconds)
    if late:
        return text.append(f" the loop has not turned for {late:.1f} s", "bold red")
    return text.append(
        f" {ended / max(seconds, 1e-9):,.0f} tasks/s, {format_bytes(now.load.drain_rate_bytes)}/s", "cyan"
    )


def _ended(found: Snapshot) -> int:
    s = found.statistics
    return s.tasks_completed + s.tasks_failed + s.tasks_cancelled


def _gauges(now: Snapshot, bar: int) -> list[Row]:
    """The limits, and the use of each. Bytes in flight drain by themselves; retained bytes do not."""
    s = now.statistics
    bound = "any number" if s.max_ops is None else f"{s.max_ops:,}"
    slots = f"{s.tasks_in_flight:,} of {bound} in flight, {s.tasks_pending:,} pending"
    iterations = f", {now.iterations} iterations of windows" if now.iterations else ""
    unused = max(0, now.load.bytes_tracked - s.bytes_in_flight - s.bytes_retained)
    reserved = f" + {format_bytes(unused)} reserved" if s.bytes_reserved else ""
    limit = "no limit" if s.max_bytes is None else format_bytes(s.max_bytes)
    nbytes = (
        f"{format_bytes(s.bytes_in_flight)} in flight + {format_bytes(s.bytes_retained)} retained{reserved} of {limit}"
    )
    taken = s.tasks_in_flight / (s.max_ops or max(s.peak_tasks_in_flight, 1))
    most = s.max_bytes or max(s.peak_bytes, 1)
    parts = ((s.bytes_in_flight, "cyan"), (s.bytes_retained, "yellow"), (unused, "grey50"))
    return [
        [Text("slots"), _bar([(taken, "cyan")], bar), Text(slots + iterations)],
        [
            Text("bytes"),
            _bar([(part / most, style) for part, style in parts], bar),
            Text(f"{nbytes}; peak {format_bytes(s.peak_bytes)}"),
        ],
    ]


def _streams(now: Snapshot, before: Snapshot | None, bar: int) -> list[Row]:
    seconds = max(now.seconds - (0.0 if before is None else before.seconds), 1e-9)
    known = {} if before is None else {stream.name: stream.busy_seconds for stream in before.streams}
    rows: list[Row] = []
    for stream in now.streams:
        share = min(1.0, max(0.0, (stream.busy_seconds - known.get(stream.name, 0.0)) / seconds))
        what = Text("idle", "dim")
        if stream.running is not None:
            what = Text.assemble(
                (stream.running, "green"), f" for {format_seconds(stream.running_seconds)}, {_short(stream.line)}"
            )
        more = f"+{stream.tasks - 1} " if stream.tasks > 1 else ""
        rows.append([Text(stream.name), _bar([(share, "green")], bar), Text(f"{share:4.0%}"), Text(more) + what])
    return rows


def _operations(now: Snapshot, bar: int) -> list[Row]:
    total = max(sum(operation.seconds for operation in now.operations), 1e-9)
    return [
        [
            Text(operation.name),
            _bar([(operation.seconds / total, "magenta")], bar),
            Text(format_seconds(operation.seconds).rjust(9)),
            Text(f"{operation.count:,} x {format_seconds(operation.seconds / operation.count)}"),
        ]
        for operation in now.operations
    ]


def _waiting(now: Snapshot) -> list[Row]:
    rows: list[Row] = []
    for waiting in now.waiting:
        more = f" and {waiting.more:,} more" if waiting.more else ""
        awaited = f"{waiting.name}{more} ({waiting.state}), {_short(waiting.line)}" if waiting.name else "its turn"
        rows.append([Text(f"{waiting.count} x"), Text(_short(waiting.place)), Text(f"for {awaited}")])
    return rows


def _scopes(now: Snapshot) -> list[Row]:
    rows: list[Row] = []
    for scope in now.scopes:
        reserve = (
            f"{format_bytes(scope.used)} of the {format_bytes(scope.reserve)} it reserved" if scope.reserve else ""
        )
        rows.append([Text(scope.name), Text(f"{scope.tasks:,} tasks"), Text(reserve)])
    return rows


def _lines(rows: Sequence[Row], width: int) -> list[Text]:
    """Rows as lines in columns. Lines are cut off if there is no room, and never broken. The last column has the room
    that the others leave."""
    widths = [min(width // 3, max(map(len, cells))) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        line = Text()
        for cell, room in zip(row[:-1], widths, strict=False):
            cell.truncate(room, overflow="ellipsis", pad=True)
            line.append_text(cell).append(" ")
        lines.append(line.append_text(row[-1]))
    return lines


def _bar(parts: Sequence[tuple[float, str]], width: int) -> Text:
    """A bar of shares of a whole, one beside the other."""
    text, room = Text(), width
    for share, style in parts:
        halves = min(2 * room, round(2 * width * share) or (1 if share > 0 else 0))
        cells = "━" * (halves // 2) + "╸" * (halves % 2)
        text.append(cells, style)
        room -= len(cells)
    return text.append("━" * room, "grey23")


def _short(line: str) -> str:
    """A line without its file's folder."""
    return re.sub(r"\S*[/\\]", "", line)
