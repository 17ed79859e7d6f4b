"""One page with the timeline of a recorded run and its memory, which needs nothing else."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any, Final

from .memory_curve import memory_curve
from .recording import INLINE_STREAM, Recording

_MOST: Final = 60_000  # slices, and points of the curve: more a browser draws slowly, and nobody tells apart


def page(recording: Recording, text: str) -> str:
    """The page as text: `text` above, the timeline and the memory curve below."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = json.dumps(_data(recording), separators=(",", ":")).replace("</", "<\\/")
    return template.replace("@TEXT@", html.escape(text)).replace("@DATA@", data)


def _data(recording: Recording) -> dict[str, Any]:
    ran = [task for task in recording.tasks if task.began is not None and task.ended is not None]
    ran.sort(key=lambda task: task.began or 0.0)
    first = min((task.submitted for task in recording.tasks), default=0.0)
    last = max((task.done for task in recording.tasks), default=1.0)
    tracks = sorted({task.stream for task in ran}, key=lambda name: (name == INLINE_STREAM, name))
    names = sorted({task.name for task in ran})
    sites = sorted({task.site for task in ran})
    left_out = max(0, len(ran) - _MOST)
    if left_out:  # the shortest are
        shown = sorted(ran, key=lambda task: (task.began or 0.0) - (task.ended or 0.0))[:_MOST]
        ran = sorted(shown, key=lambda task: task.began or 0.0)
    numbers = [{text: i for i, text in enumerate(texts)} for texts in (tracks, names, sites)]
    slices = [
        [
            numbers[0][task.stream], numbers[1][task.name], _us(task.began, first), _us(task.ended, first),
            _us(task.submitted, first), _us(task.launched, first), task.seq, task.kept, numbers[2][task.site],
        ]
        for task in ran
    ]  # fmt: skip
    return {
        "tracks": tracks,
        "names": names,
        "sites": sites,
        "slices": slices,
        "leftOut": left_out,
        "memory": [[_us(when, first), used] for when, used in _thinned(memory_curve(recording))],
        "limit": recording.metadata.get("max_bytes"),
        "span": _us(last, first),
    }


def _us(when: float | None, first: float) -> float:
    return round(((when or first) - first) * 1e6, 1)


def _thinned(curve: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The curve with no more points than are shown: of each group of points the highest and the last."""
    group = -(-2 * len(curve) // _MOST)
    if group <= 2:
        return curve
    found = []
    for i in range(0, len(curve), group):
        part = curve[i : i + group]
        highest = max(part, key=lambda point: point[1])
        found += [highest, part[-1]] if highest is not part[-1] else [highest]
    return found
