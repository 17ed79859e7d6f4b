"""Records that print for people: bytes and durations with units, nested records as tables.

The values stay exact counts. The annotation of a field says its unit, as in `peak: Bytes` or `wait: Seconds | None`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Final, TypeAlias

from .._arguments import format_bytes, format_number, format_seconds
from .tables import aligned, preformatted, table

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
