"""Opening a path that somebody else chose, without waiting for another process.

To open a named pipe waits until the other end is open, too: it may be for ever, on the event loop's thread.
"""

from __future__ import annotations

import os
from typing import Any


def at_once(path: Any, flags: int) -> int:
    """What `open(path, opener=at_once)` calls. A named pipe that nobody writes to is empty; for one that nobody reads
    it raises OSError."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a page or a picture. Names in it may have half a surrogate pair."""
    with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=at_once) as file:
        file.write(text)
