"""The events of a trace, each a line of its file, for viewers and `Recording.read`."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import numpy as np

from .._core.callsite import CallSite, line_of
from .._core.instrument import InlineOp
from ..runtime.runtime import INLINE_STREAM
from .probe import Probe
from .recording import FORMAT, PHASES, ScopeRecord, TaskRecord, phases, task_of

_LOOP: Final = 1  # the loop's track; those of the streams follow
_STREAMS: Final = 10
_MOST_KNOWN: Final = 10_000
_MOMENT: Final = 0.5  # microseconds shown for a submission: less than any takes

# For each phase of a task one of the colours that viewers know by name.
_COLOURS: Final = dict(zip(PHASES, ("grey", "yellow", "terrible", "bad", "olive", "good", "white"), strict=True))
# The fields of a task that are told where they are not as usual.
_USUAL: Final = {field.name: field.default for field in fields(TaskRecord)}
_FIXED: Final = ("state", "waited_for", "expedited", "device", "stream", "copies", "claim")


class Events:
    """Makes events of a trace's notes.

    Args:
        details: so many tasks are recorded in full. Attributes:
        head: the beginning of the file.
    """

    def __init__(self, probe: Probe, details: int) -> None:
        self._details = details
        self._origin = time.perf_counter()
        self._tracks: dict[tuple[str, str], int] = {}  # of streams; a quick task is on the loop's track
        self._known: dict[Any, tuple[str, CallSite | None]] = {}  # its identity is used: keep it alive
        self._shown: dict[int, TaskRecord] = {}
        self.head: str = self._head(probe)

    def _head(self, probe: Probe) -> str:
        tracks = {_LOOP: INLINE_STREAM}
        for track, lane in enumerate(probe.lanes, _STREAMS):
            self._tracks[lane.device.name, lane.stream.name] = track
            tracks[track] = lane.stream.name
        metadata = {
            "format": FORMAT,
            "wall_clock": time.time(),
            "perf_counter": self._origin,
            **asdict(probe.limits),
            "bytes_before": probe.used_bytes,
            "devices": [
                {"name": device.name, "kind": device.kind, "streams": len(device.streams)}
                for device in dict.fromkeys(lane.device for lane in probe.lanes)
            ],
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "program": " ".join(sys.argv),
            "pid": os.getpid(),
        }
        texts = [_event("M", "asyncsched.metadata", args=metadata)]
        texts.append(_event("M", "process_name", args={"name": "asyncsched"}))
        for track, name in tracks.items():
            texts.append(_event("M", "thread_name", tid=track, args={"name": name}))
            texts.append(_event("M", "thread_sort_index", tid=track, args={"sort_index": track}))
        return "[\n" + "".join(texts)

    def end(self, lost: int) -> str:
        """The end of the file."""
        return _event("M", "asyncsched.end", args={"lost": lost})[:-2] + "\n]\n"

    def _us(self, when: float) -> float:
        return round((when - self._origin) * 1e6, 1)

    # -- tasks ----------------------------------------------------------------------------------------------------

    def task(self, task: TaskRecord, site: CallSite | None) -> str:
        """A task that ended, or the present state of one that did not. Its times are the clock's."""
        if task.began is None or task.ended is None or task.launched is None:
            text = self._without_body(task, site)
        else:
            key = task.stream, task.device, task.name, id(site), task.state, task.waited_for, task.expedited
            known, origin = self._known.get(key), self._origin
            text = (known[0] if known is not None else self._template(key, task.name, site, task)) % (
                (task.began - origin) * 1e6,
                (task.ended - task.began) * 1e6,
                task.seq,
                task.scope,
                task.cost,
                task.kept,
                [*task.inputs],
                (task.submitted - origin) * 1e6,
                (task.head - origin) * 1e6,
                (task.launched - origin) * 1e6,
                (task.done - origin) * 1e6,
            )
        if self._details > 0:
            self._details -= 1
            text += self._detailed(text)
        return text

    def inline(self, op: InlineOp, scope: int) -> str:
        """An operation that ran on the loop's thread, without becoming a task."""
        key = op.name, id(op.site)
        known = self._known.get(key)
        text = known[0] if known is not None else self._template(key, op.name, op.site)
        return text % ((op.began - self._origin) * 1e6, (op.ended - op.began) * 1e6, op.seq, scope, op.nbytes)

    def _template(self, key: tuple[Any, ...], name: str, site: CallSite | None, task: TaskRecord | None = None) -> str:
        """A slice's text without numbers, kept for later slices of the same kind."""
        track, fixed, more = _LOOP, {"site": line_of(site), "stream": INLINE_STREAM}, ""
        if task is not None:
            track, fixed = self._tracks.get((task.device, task.stream), _LOOP), self._fixed(task, site)
            more = ',"kept":%d,"inputs":%s,"submitted":%.1f,"head":%.1f,"launched":%.1f,"done":%.1f'
        named, args = (_json(what).replace("%", "%%") for what in (name, fixed))
        found = (
            f'{{"ph":"X","cat":"task","pid":1,"tid":{track},"name":{named},"ts":%.1f,"dur":%.1f,'
            f'"args":{args[:-1]},"seq":%d,"scope":%d,"cost":%d{more}}}}},\n'
        )
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = found, site
        return found

    @staticmethod
    def _fixed(task: TaskRecord, site: CallSite | None) -> dict[str, Any]:
        """The common part of tasks that are alike: what is not as in most."""
        told = {name: getattr(task, name) for name in _FIXED if getattr(task, name) != _USUAL[name]}
        return {"site": line_of(site)} | told

    def _without_body(self, task: TaskRecord, site: CallSite | None) -> str:
        """A claim, or a task that was cancelled or failed before it ran."""
        told = {name: getattr(task, name) for name in ("seq", "scope", "inputs", "cost", "kept")}
        times = {name: getattr(task, name) for name in ("submitted", "head", "launched", "done")}
        told |= {name: None if when is None else self._us(when) for name, when in times.items()}
        args = self._fixed(task, site) | told
        track = self._tracks.get((task.device, task.stream), _LOOP)
        return _event("i", task.name, s="t", cat="task", tid=track, ts=self._us(task.done), args=args)

    def _detailed(self, text: str) -> str:
        """For a task its submission, an arrow from there to its run, and its phases."""
        event = json.loads(text[:-2])
        task = task_of(event)
        submitted, where = round(task.submitted * 1e6, 1), {"tid": _LOOP, "cat": "phase", "id": task.seq}
        texts = [_event("X", "submit " + task.name, tid=_LOOP, ts=submitted, dur=_MOMENT)]
        texts.append(_event("b", task.name, ts=submitted, args=event["args"], **where))
        if task.began is not None:
            self._shown[task.seq] = task
            arrow = {"cat": "flow", "id": task.seq}
            texts.append(_event("s", "submit to run", tid=_LOOP, ts=submitted, **arrow))
            texts.append(_event("f", "submit to run", tid=event["tid"], ts=event["ts"], bp="e", **arrow))
        for phase, since, until in phases(task, self._shown):
            if until > since:
                texts.append(_event("b", PHASES[phase], ts=round(since * 1e6, 1), cname=_COLOURS[phase], **where))
                texts.append(_event("e", PHASES[phase], ts=round(until * 1e6, 1), **where))
        texts.append(_event("e", task.name, ts=round(task.done * 1e6, 1), **where))
        return "".join(texts)

    # -- the rest -------------------------------------------------------------------------------------------------

    def released(self, times: Sequence[float], seqs: Sequence[int], nbytes: Sequence[int]) -> str:
        """The bytes that results gave back: for each the time, the number of its task, and the bytes."""
        args = {"times": [self._us(when) for when in times], "tasks": seqs, "bytes": nbytes}
        return _event("M", "asyncsched.released", args=args)

    def scope_opened(self, scope: ScopeRecord, outer: str) -> str:
        args = {"in": outer, "parent": scope.parent, "priority": scope.priority}
        if scope.tenant:
            args["tenant"] = scope.tenant
        return self._scope("b", scope, scope.opened, args)

    def scope_closed(self, scope: ScopeRecord, when: float, reserve: int) -> str:
        return self._scope("e", scope, when, {"reserve": reserve})

    def _scope(self, phase: str, scope: ScopeRecord, when: float, args: dict[str, Any]) -> str:
        kind = "scope" if scope.own_queue else "iteration"
        return _event(phase, scope.name, tid=_LOOP, cat=kind, id=scope.number, ts=self._us(when), args=args)

    def batch(self, scope: int, when: float, items: int) -> str:
        return _event("n", "batch", tid=_LOOP, cat="scope", id=scope, ts=self._us(when), args={"items": items})

    def wait(self, began: float, seq: int, count: int, ended: float) -> str:
        since, until = self._us(began), self._us(ended)
        name = f"await #{seq}" if count == 1 else f"await {count} tasks"
        where = {"tid": _LOOP, "cat": "await", "id": since}
        args = {"began": since, "task": seq, "count": count}
        return _event("b", name, ts=since, **where) + _event("e", name, ts=until, args=args, **where)

    def counters(
        self, when: float, pending: int, in_flight: int, nbytes: int, used: int, cpu: float, scopes: Any
    ) -> str:
        told: dict[str, dict[str, float]] = {
            "tasks": {"pending": pending, "in flight": in_flight},
            "bytes": {"in flight": nbytes, "retained": max(0, used - nbytes)},
            "loop": {"ran": round(cpu, 6)},
        }
        told |= {f"bytes of {scope.name} #{scope.number}": {"bytes": own} for scope, own in scopes}
        return "".join([_event("C", name, ts=self._us(when), args=args) for name, args in told.items()])


def _event(phase: str, name: str, **more: Any) -> str:
    return _json({"ph": phase, "pid": 1, "name": name, **more}) + ",\n"


def _json(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))
