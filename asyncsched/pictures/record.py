"""Records that print for people: bytes and durations with units, nested records as tables. Tables of names and values.

The values of a record stay exact counts. The annotation of a field says its unit, as in `peak: Bytes` or
`wait: Seconds | None`.

Tables are text, or HTML for a page that has a style sheet; or HTML for notebooks, without a style sheet, in colours
that suit any page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

import numpy as np

from .._arguments import format_bytes, format_number, format_seconds

Bytes: TypeAlias = int
BytesPerSecond: TypeAlias = float
Seconds: TypeAlias = float

_FORMATS: Final[dict[str, Callable[[float], str]]] = {  # the first whose name is in an annotation counts
    "BytesPerSecond": lambda rate: f"{format_bytes(rate)}/s",
    "Bytes": format_bytes,
    "Seconds": format_seconds,
}
_SHOWN: Final = 12  # elements of a sequence; longer ones are counted
_ROWS: Final = 50  # rows of a table


class Record:
    """A dataclass that prints for people. Declare it with `repr=False`, so that it keeps this `repr`.

    `repr()` is one line, `str()` has a line for each field, and a notebook shows a table.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        told = [f"{name}={_text(value, unit, repr)}" for name, value, unit in _fields(self)]
        return f"{type(self).__name__}({', '.join(told)})"

    def __str__(self) -> str:
        return "\n".join([type(self).__name__, *_lines(self)])

    def _repr_html_(self) -> str:
        rows = [(name.replace("_", " "), text) for name, text in _plain(self)]
        blocks = list(_blocks(self))
        return table(type(self).__name__, rows, preformatted("\n".join(blocks)) if blocks else "")


def _fields(record: Any) -> list[tuple[str, Any, str]]:
    """The name, value and annotation of each field."""
    return [(field.name, getattr(record, field.name), str(field.type)) for field in fields(record)]


def _lines(record: Record) -> list[str]:
    plain = aligned((False, column) for column in zip(*_plain(record), strict=True))
    return [f"  {line}" for line in (*plain, *_blocks(record))]


def _plain(record: Record) -> list[tuple[str, str]]:
    """The fields that fit in a line, as name and text."""
    return [(name, _text(value, unit)) for name, value, unit in _fields(record) if not _is_nested(value)]


def _blocks(record: Record) -> Iterator[str]:
    """The lines of fields that take several: a record, or a tuple of records as a table."""
    for name, value, _ in _fields(record):
        if isinstance(value, Record):
            yield from (name, *_lines(value))
        elif _is_nested(value):
            yield from (name, *[f"  {line}" for line in aligned(_columns(value[:_ROWS]))])
            if len(value) > _ROWS:
                yield f"  ... and {len(value) - _ROWS:,} more"


def _columns(rows: tuple[Any, ...]) -> Iterator[tuple[bool, list[str]]]:
    """The columns of a table of similar records: whether it has numbers, and its texts."""
    for name, _, unit in _fields(rows[0]):
        cells = [getattr(row, name) for row in rows]
        yield all(isinstance(cell, int | float) for cell in cells), [name, *[_text(cell, unit) for cell in cells]]


def _is_nested(value: Any) -> bool:
    return isinstance(value, Record) or (type(value) is tuple and bool(value) and isinstance(value[0], Record))


def _text(value: Any, unit: str, plain: Callable[[Any], str] = str) -> str:
    """A value as text, in the unit that its field's annotation names."""
    if isinstance(value, list | tuple | dict):
        if isinstance(value, dict) or len(value) > _SHOWN:
            return f"<{len(value):,} of them>"
        return f"({', '.join([_text(one, unit, plain) for one in value])})"
    form = next((form for name, form in _FORMATS.items() if name in unit), None)
    if isinstance(value, str | bool) or value is None:
        return plain(value) if not isinstance(value, str) or value.isprintable() else repr(value)
    if form is not None:
        return form(value)
    if isinstance(value, float):
        return format_number(value)
    return f"{value:,}" if isinstance(value, int) and plain is str else plain(value)


_FRAME: Final = "border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:6px 10px;display:inline-block"
_CELL: Final = "padding:1px 12px 1px 0;text-align:left;vertical-align:top;border:none;background:none"
_PREVIEWED: Final = 100  # up to so many elements a preview has all
_EDGE: Final = 3


def table(title: str, rows: Iterable[tuple[str, Any]], more: str = "") -> str:
    """Rows of a name and a value each, escaped, and below them `more`. `more` is HTML, as are values of type
    `Markup`."""
    cells = ((_escaped(name), _as_html(value)) for name, value in rows)
    names = f"{_CELL};opacity:.65"
    lines = "".join(
        f'<tr style="background:none"><td style="{names}">{name}</td><td style="{_CELL}">{value}</td></tr>'
        for name, value in cells
    )
    inner = f'<table style="border-collapse:collapse;margin:2px 0;font-size:inherit">{lines}</table>' if lines else ""
    return f'<div style="{_FRAME}"><b>{_escaped(title)}</b>{inner}{more}</div>'


def aligned(columns: Iterable[tuple[bool, Sequence[str]]]) -> list[str]:
    """Lines of text. Each column says whether it is of numbers, which are aligned at the right, and has its cells."""
    padded = []
    for number, cells in columns:
        most = max(map(len, cells))
        padded.append([cell.rjust(most) if number else cell.ljust(most) for cell in cells])
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]


@dataclass(frozen=True)
class Table:
    """Rows under heads, for a terminal and for a page. A column without any cells is left out.

    >>> print(Table("Streams", ("stream", "tasks", "share"), [("cpu stream 0", "1,200", "97.0%")]).text())
    Streams
    stream        tasks  share
    cpu stream 0  1,200  97.0%

    Attributes:
        names: the first columns, which are text. All others are numbers, aligned at the right.
        note: a line below the table.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    note: str = ""

    def _columns(self) -> list[tuple[bool, Sequence[str]]]:
        """For each column whether it is of numbers, and its cells."""
        columns = zip(self.heads, *self.rows, strict=True)
        return [(i >= self.names, cells) for i, cells in enumerate(columns) if any(cells[1:])]

    def text(self) -> str:
        return "\n".join([text for text in (self.title, *aligned(self._columns()), self.note) if text])

    def html(self) -> str:
        """A share has its bar: `--share` of the cell's width."""
        kinds, columns = zip(*self._columns(), strict=True)
        rows = "".join(f"<tr>{''.join(map(_cell, kinds, row))}</tr>" for row in zip(*columns, strict=True))
        note = f"<p>{_escaped(self.note)}</p>" if self.note else ""
        return f"<section><h2>{_escaped(self.title)}</h2><div><table>{rows}</table></div>{note}</section>"


def _cell(number: bool, text: str) -> str:
    kind = ' class="number"' if number else ""
    share = f' style="--share:{text}"' if number and text.endswith("%") else ""
    return f"<td{kind}{share}>{_escaped(text)}</td>"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def used(amount: int, limit: int | None, text: Callable[[int], str] = "{:,}".format) -> Markup:
    """How much of a limit is used, with a bar if there is a limit."""
    if limit is None:
        return Markup(f"{text(amount)} (no limit)")
    part = min(1.0, amount / limit) if limit else 0.0
    shape = "height:8px;border-radius:4px"
    bar = (
        f'<span style="display:inline-block;width:120px;margin-right:8px;{shape};background:rgba(128,128,128,.3)">'
        f'<span style="display:block;width:{100 * part:.0f}%;{shape};background:#2f6fd6"></span></span>'
    )
    return Markup(f"{bar}{text(amount)} of {text(limit)}")


def preview(array: np.ndarray[Any, Any]) -> str:
    """An array's elements: of a large array those at its edges, of an array with many axes its first part."""
    part = array[(0,) * (array.ndim - 2)] if array.ndim > 2 and array.size else array
    text = np.array2string(part, threshold=_PREVIEWED, edgeitems=_EDGE, max_line_width=100)
    return preformatted(text if part is array else f"the first of {array.shape[:-2]}:\n{text}")


def preformatted(text: str) -> str:
    """Lines of text, as they are."""
    style = "margin:4px 0 0;max-height:300px;overflow:auto;background:none;color:inherit"
    return f'<pre style="{style}">{_escaped(text)}</pre>'


def _as_html(value: Any) -> str:
    if isinstance(value, Markup):
        return value
    if isinstance(value, list):
        return _escaped(", ".join(map(str, value)))
    return _escaped(str(value))


def _escaped(text: str) -> str:
    from html import escape  # most programs show no HTML, and it takes a millisecond to import

    return escape(text)
