"""Lines of the user's code, for messages."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import lru_cache
from types import CodeType, FrameType

CallSite = tuple[CodeType, int]  # code and offset of a line: cheap to keep, resolved only for messages

# One tuple for each line, however many tasks it submits: a million of them would slow down the garbage collector.
_known: dict[tuple[int, int], CallSite] = {}  # by the identity of the code object, which the tuple keeps alive
_MOST_KNOWN = 1024
_lines: dict[int, tuple[CallSite, str]] = {}  # as text, by the identity of the site, which the tuple keeps alive
_inside: dict[int, CodeType] = {}  # code of the files in `_BETWEEN`, by identity: quicker to look up than a file's name

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
# Files between a task and the user's line: `stack.enter_async_context(s.scope())` calls through contextlib.
_BETWEEN = (_PACKAGE, contextlib.__file__)


def line_of(site: CallSite | None) -> str:
    """`site` as text: file and line."""
    if site is None:
        return "an unknown line"
    if (known := _lines.get(id(site))) is not None:  # most lines come again
        return known[1]
    if len(_lines) >= _MOST_KNOWN:
        _lines.clear()
    _lines[id(site)] = site, (found := _found(*site))
    return found


def _found(code: CodeType, lasti: int) -> str:
    if _drives(code.co_filename):
        return "an asyncio task without a line of yours, such as a pipeline's"
    line = next((line for start, end, line in code.co_lines() if start <= lasti < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno} in {code.co_name}"


def is_users(code: CodeType) -> bool:
    """Whether this is the user's code: see `is_users_file`."""
    return is_users_file(code.co_filename)


def is_users_file(filename: str) -> bool:
    """Whether this is a file of the user's: neither the package's, nor contextlib's, nor the event loop's."""
    return not filename.startswith(_BETWEEN) and not _drives(filename)


@lru_cache(1024)
def _drives(filename: str) -> bool:
    """Whether this is a file of asyncio or anyio, which run coroutines. (The core imports neither.)"""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in ("asyncio", "anyio")]
    return any(file and filename.startswith(os.path.dirname(file) + os.sep) for file in files)


def call_site(skip: int = 2) -> CallSite | None:
    """The line of the user's code that called into the package.

    Args:
        skip: how many frames up to begin; the frames below are known to be the package's.
    """
    frame: FrameType | None = sys._getframe(skip)
    while frame is not None:
        number = id(code := frame.f_code)
        found = _known.get((number, frame.f_lasti))  # most often the line is known already
        if found is not None:
            return found
        if number not in _inside:
            if not code.co_filename.startswith(_BETWEEN):
                if len(_known) >= _MOST_KNOWN:
                    _known.clear()
                found = _known[number, frame.f_lasti] = code, frame.f_lasti
                return found
            _inside[number] = code
        frame = frame.f_back
    return None
