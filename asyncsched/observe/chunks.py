"""How a trace's record is packed into one line of its file, and out of it again: see `recording`."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any, Final

import numpy as np

FORMAT: Final = 1
TICK: Final = 1e-7  # seconds: the unit of every time in the record

# A task's row, in this order. The times follow each other, so each is kept as what it is later than the one before.
COLUMNS: Final = (
    "seq", "name", "lane", "submitted", "head", "launched", "began", "ended", "done",
    "state", "cost", "kept", "scope", "site", "expedited", "full", "inputs",
)  # fmt: skip
SEQ, NAME, LANE, SUBMITTED, HEAD, LAUNCHED, BEGAN, ENDED, DONE = range(9)
STATE, COST, KEPT, SCOPE, SITE, EXPEDITED, FULL, INPUTS = range(9, 17)
# Lanes that are none: where a row ran inline, and what never had one, because it was not launched or is a claim.
INLINE, NOWHERE, CLAIM = 0, -1, -2
NO_BODY: Final = -1  # in the column `began`

COUNTED: Final = ("time", "pending", "in_flight", "bytes_in_flight", "bytes", "loop_cpu", "scopes")


def ticks(times: Iterable[float], origin: float) -> np.ndarray[Any, Any]:
    """Times of `perf_counter` in ticks since `origin`."""
    return np.rint((np.fromiter(times, float) - origin) / TICK).astype(np.int64)


def deltas(numbers: Any) -> list[int]:
    """Each as the difference to the one before it."""
    found: list[int] = np.diff(np.asarray(numbers, np.int64), prepend=0).tolist()
    return found


def running(numbers: Sequence[int]) -> list[int]:
    """The numbers that `deltas` was given: the reverse of it."""
    found: list[int] = np.cumsum(np.asarray(numbers, np.int64)).tolist()
    return found


def pack_tasks(rows: Sequence[list[Any]], origin: float, number: Callable[[int, Any], int]) -> list[Any]:
    """The columns of tasks, each as a list of small integers; or one integer, if all are the same.

    Args:
        number: of a name, a lane or a line, given its column.
    """
    columns: list[Any] = list(zip(*rows, strict=True))
    later = ticks(columns[SUBMITTED], origin)
    packed: list[Any] = list(columns)
    packed[SUBMITTED] = deltas(later)
    for i in range(HEAD, DONE + 1):
        now = np.maximum(ticks(columns[i], origin), later)
        found = now - later
        if i == BEGAN:
            found[np.array(columns[ENDED]) == 0] = NO_BODY
        packed[i] = found.tolist()
        later = now
    seqs = np.array(columns[SEQ], np.int64)
    packed[SEQ] = deltas(seqs)
    for i in (NAME, LANE, SITE):
        places = list(map(id, columns[i]))
        numbers = {place: number(i, item) for place, item in dict(zip(places, columns[i], strict=True)).items()}
        packed[i] = [numbers[place] for place in places]
    for i in (EXPEDITED, FULL):
        packed[i] = list(map(int, columns[i]))
    reads = list(map(len, columns[INPUTS]))
    inputs = np.fromiter(chain.from_iterable(columns[INPUTS]), np.int64, sum(reads))
    packed[INPUTS] = reads
    packed = [column if len(set(column)) > 1 else column[0] for column in packed]
    packed.append(np.where(inputs < 0, 0, np.repeat(seqs, reads) - inputs).tolist())
    return packed


def unpack_tasks(packed: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    """The rows again: times in ticks since the origin, `began` and `ended` None where no body ran."""
    *columns, flat = packed
    count = max((len(column) for column in columns if isinstance(column, list)), default=1)
    columns = [column if isinstance(column, list) else [column] * count for column in columns]
    bodies = [later != NO_BODY for later in columns[BEGAN]]
    columns[SEQ], columns[SUBMITTED] = running(columns[SEQ]), running(columns[SUBMITTED])
    for i in range(HEAD, DONE + 1):
        columns[i] = [before + max(0, later) for before, later in zip(columns[i - 1], columns[i], strict=True)]
    for i in (BEGAN, ENDED):
        columns[i] = [now if body else None for now, body in zip(columns[i], bodies, strict=True)]
    following = iter(flat)
    columns[INPUTS] = [
        tuple([seq - before if before else -1 for before in islice(following, reads)])
        for seq, reads in zip(columns[SEQ], columns[INPUTS], strict=True)
    ]
    return zip(*columns, strict=True)


def line(what: str, content: dict[str, Any]) -> str:
    """An event that viewers pass over, with something of ours in it, compressed."""
    text = base64.b64encode(zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 3)).decode()
    return f'{{"ph":"M","pid":1,"name":"asyncsched.{what}","args":{{"z":"{text}"}}}},\n'


def content(event: dict[str, Any]) -> Any:
    """The content that `line` was given: the reverse of it."""
    return json.loads(zlib.decompress(base64.b64decode(event["args"]["z"])))
