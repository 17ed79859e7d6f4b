"""Something that comes in the middle: at a call inside the engine, as a finaliser may that the collector runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

from asyncsched import _core

_INSIDE = (str(Path(_core.__file__).parent), str(Path(__file__).parent / "rig.py"))


_MOST = 6  # what comes in the middle of what comes in the middle must end


class _Model(Protocol):
    thinking: bool


class Meddler:
    """Does something at each `gap`th call of a function of this name, or of any, while it is entered."""

    def __init__(self, model: _Model, act: Callable[[], None], gap: int, name: str) -> None:
        self._model = model
        self._act = act
        self._gap = gap
        self._name = name
        self._calls = self._acts = 0
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        sys.setprofile(self._called)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        sys.setprofile(None)
        if self._error is not None:
            raise self._error

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or self._model.thinking or self._error is not None or self._acts >= _MOST:
            return
        if self._name in ("", code.co_name) and code.co_filename.startswith(_INSIDE):
            self._calls += 1
            if self._calls % self._gap == 0:
                self._acts += 1
                try:
                    self._act()
                except BaseException as error:  # raised there, it would end the change
                    self._error = error
