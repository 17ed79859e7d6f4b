"""The picture in a trace: the events that Perfetto and chrome://tracing show."""

from __future__ import annotations

import json
from typing import Any, Final

from .._core.callsite import line_of
from .._core.model import STATE_NAMES
from ..runtime.runtime import LoopStream
from .chunks import (
    BEGAN,
    COST,
    DONE,
    ENDED,
    EXPEDITED,
    FULL,
    HEAD,
    INLINE,
    INPUTS,
    KEPT,
    LANE,
    LAUNCHED,
    NAME,
    NOWHERE,
    SCOPE,
    SEQ,
    SITE,
    STATE,
    SUBMITTED,
)  # fmt: skip

_LOOP: Final = 1  # the loop's track; those of the streams follow
_STREAMS: Final = 10
_MOST_KNOWN: Final = 10_000
_MOMENT: Final = 0.5  # microseconds that a submission is shown to take: less than any takes

# The phases of a task, each with one of the colours that viewers know by name.
QUEUED, SLOTS, BYTES = "behind others in its queue", "waits for a slot", "waits for bytes"
READING, STREAM, RUNS, TOLD = "waits for inputs", "waits for its stream", "runs", "ended, not told yet"
_COLOURS: Final = {
    QUEUED: "grey", SLOTS: "yellow", BYTES: "terrible", READING: "bad", STREAM: "olive", RUNS: "good", TOLD: "white",
}  # fmt: skip


def event(**fields: Any) -> str:
    """One event, as a line."""
    return json.dumps({"pid": 1, **fields}, separators=(",", ":")) + ",\n"


class Picture:
    """Makes events of what a trace noted. Numbers names, lines and lanes as they come.

    Args:
        origin: of the times, in seconds of `perf_counter`.
        details: so many tasks are shown with all there is.
    """

    def __init__(self, origin: float, details: int) -> None:
        self._origin = origin
        self._details = details
        self._strings: dict[Any, int] = {}
        self._kept: list[Any] = []
        self._slices: dict[tuple[Any, str], str] = {}
        self._lanes: dict[Any, int] = {}
        self._new: dict[str, list[Any]] = {"strings": [], "lanes": []}
        self._named: list[str] = []  # events that name tracks
        self._ended: dict[int, float] = {}  # when bodies ended, of tasks shown in full
        self._scopes: dict[int, str] = {0: ""}
        self._iterations: set[int] = set()

    def begin(self) -> str:
        """What names the tracks that are always there."""
        return self._track(_LOOP, "event loop")

    def number(self, column: int, item: Any) -> int:
        """The number of a name, a line or a lane (see `chunks`), which it gets when it is first asked for."""
        if column == LANE:
            return self._lane(item)
        # By identity, since hashing a code object takes long; it is kept, so that no other gets its identity.
        key = (id(item[0]), item[1]) if column == SITE and item is not None else item
        found = self._strings.get(key)
        if found is None:
            found = self._strings[key] = len(self._strings)
            self._kept.append(item)
            self._new["strings"].append(item if isinstance(item, str) else line_of(item))
        return found

    def new_names(self) -> dict[str, list[Any]]:
        """The strings and lanes that were numbered since this was last asked."""
        new, self._new = self._new, {"strings": [], "lanes": []}
        return new

    def _lane(self, lane: Any) -> int:
        if lane is None or isinstance(lane, int):
            return NOWHERE if lane is None else lane
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = len(self._lanes) + 1
            self._new["lanes"].append([lane.device.name, lane.stream.name, bool(lane.copies)])
        return found

    def _track(self, tid: int, name: str) -> str:
        named = event(ph="M", tid=tid, name="thread_name", args={"name": name})
        return named + event(ph="M", tid=tid, name="thread_sort_index", args={"sort_index": tid})

    def _us(self, when: float) -> float:
        return round((when - self._origin) * 1e6, 1)

    # -- tasks ----------------------------------------------------------------------------------------------------

    def row(self, row: list[Any]) -> str:
        """A task, or a row that ran inline."""
        lane, name = row[LANE], row[NAME]
        text = self._slices.get((lane, name)) or self._slice(lane, name)
        if self._details > 0:
            self._details -= 1
            return self._in_full(row, text)
        if not row[ENDED]:
            return ""
        began = row[BEGAN]
        return text % ((began - self._origin) * 1e6, (row[ENDED] - began) * 1e6, "")

    def _tid(self, lane: Any) -> int:
        """The track of a lane. What ran on the loop's thread is on that of the loop."""
        number = self._lane(lane)
        return _LOOP if type(lane.stream) is LoopStream else _STREAMS + number

    def new_tracks(self) -> str:
        """What names the tracks that are new since this was last asked."""
        new, self._named = self._named, []
        return "".join(new)

    def _slice(self, lane: Any, name: str) -> str:
        """A slice's text without times and arguments, kept for the next of this name and lane."""
        tid = _LOOP
        if lane is not None and not isinstance(lane, int):
            new = lane not in self._lanes
            tid = self._tid(lane)
            if new and tid != _LOOP:
                self._named.append(self._track(tid, lane.stream.name))
        quoted = json.dumps(name).replace("%", "%%")
        found = f'{{"ph":"X","pid":1,"tid":{tid},"ts":%.1f,"dur":%.1f,"name":{quoted}%s}},\n'
        if len(self._slices) < _MOST_KNOWN:
            self._slices[lane, name] = found
        return found

    def _arguments(self, row: list[Any]) -> dict[str, Any]:
        found = {
            "seq": row[SEQ], "line": line_of(row[SITE]), "state": STATE_NAMES[row[STATE]], "cost": row[COST],
            "kept": row[KEPT], "scope": self._scopes.get(row[SCOPE], ""), "reads": [n for n in row[INPUTS] if n >= 0],
        }  # fmt: skip
        if row[EXPEDITED]:
            found["expedited"] = True
        return found

    def _in_full(self, row: list[Any], text: str) -> str:
        """A task in full: a slice with arguments, its submission, an arrow from there, and its life in phases."""
        seq, arguments = row[SEQ], self._arguments(row)
        args = ',"args":' + json.dumps(arguments, separators=(",", ":"))
        texts = []
        if row[ENDED]:
            texts.append(text % ((row[BEGAN] - self._origin) * 1e6, (row[ENDED] - row[BEGAN]) * 1e6, args))
        if row[LANE] == INLINE:
            return texts[0]
        submitted = self._us(row[SUBMITTED])
        common = {"cat": "task", "id": seq}
        texts += [
            event(ph="X", tid=_LOOP, ts=submitted, dur=_MOMENT, name="submit " + row[NAME]),
            event(ph="b", tid=_LOOP, ts=submitted, name=row[NAME], args=arguments, **common),
        ]
        if row[ENDED]:
            self._ended[seq] = row[ENDED]
            arrow = {"cat": "flow", "name": "submit to run", "id": seq}
            tid, began = self._tid(row[LANE]), self._us(row[BEGAN])
            texts.append(event(ph="s", tid=_LOOP, ts=submitted, **arrow))
            texts.append(event(ph="f", bp="e", tid=tid, ts=max(began, submitted), **arrow))
        since = submitted
        for what, until in self._phases(row):
            now = max(self._us(until), since)
            if now > since:
                texts.append(event(ph="b", tid=_LOOP, ts=since, name=what, cname=_COLOURS[what], **common))
                texts.append(event(ph="e", tid=_LOOP, ts=now, name=what, **common))
            since = now
        texts.append(event(ph="e", tid=_LOOP, ts=since, name=row[NAME], **common))
        return "".join(texts)

    def _phases(self, row: list[Any]) -> list[tuple[str, float]]:
        if not row[LAUNCHED]:
            return [(QUEUED, row[DONE])]
        found = [(QUEUED, row[HEAD]), (SLOTS if row[FULL] else BYTES, row[LAUNCHED])]
        if row[ENDED]:
            ready = max((self._ended.get(seq, 0.0) for seq in row[INPUTS]), default=0.0)
            found += [(READING, min(ready, row[BEGAN])), (STREAM, row[BEGAN]), (RUNS, row[ENDED])]
        return [*found, (TOLD, row[DONE])]

    # -- the rest ---------------------------------------------------------------------------------------------------

    def scope_opened(self, number: int, parent: int, name: str, when: float, own: bool, level: int) -> str:
        self._scopes[number] = name
        what = "scope" if own else "iteration"
        if not own:
            self._iterations.add(number)
        args = {"in": self._scopes.get(parent, ""), "priority": level}
        return event(ph="b", tid=_LOOP, cat=what, id=number, ts=self._us(when), name=name, args=args)

    def scope_closed(self, number: int, when: float) -> str:
        what = "iteration" if number in self._iterations else "scope"
        self._iterations.discard(number)
        name = self._scopes.pop(number, "")
        return event(ph="e", tid=_LOOP, cat=what, id=number, ts=self._us(when), name=name)

    def batch(self, scope: int, when: float, items: int) -> str:
        args = {"items": items}
        return event(ph="n", tid=_LOOP, cat="scope", id=scope, ts=self._us(when), name="batch", args=args)

    def wait(self, began: float, seq: int, count: int, ended: float) -> str:
        name = f"await #{seq}" if count == 1 else f"await {count} tasks"
        key = {"tid": _LOOP, "cat": "await", "id": self._us(began), "name": name}
        return event(ph="b", ts=self._us(began), **key) + event(ph="e", ts=self._us(ended), **key)

    def counters(
        self, when: float, pending: int, in_flight: int, nbytes: int, used: int, cpu: float, scopes: Any
    ) -> str:
        ts = self._us(when)
        texts = [
            event(ph="C", ts=ts, name="tasks", args={"pending": pending, "in flight": in_flight}),
            event(ph="C", ts=ts, name="bytes", args={"in flight": nbytes, "retained": max(0, used - nbytes)}),
        ]
        for number, own in scopes:
            name = f"bytes of {self._scopes.get(number, 'a scope')} #{number}"
            texts.append(event(ph="C", ts=ts, name=name, args={"bytes": own}))
        return "".join(texts)
