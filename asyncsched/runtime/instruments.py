"""The one observer that an engine and its streams know, which hands on to the instruments of a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .._core.instrument import EVENTS, Instrument
from .._log import HOOK_FAILURES, Log

log: Final = Log("asyncsched")


class Instruments(Instrument):
    """Instruments, each told of what it overrides alone. Has a method for each of theirs.

    One that raises is logged and removed: what it missed it would not understand, and the scheduler has to go on.

    Args:
        changed: called with this when the first is there, and with None when the last is gone.
    """

    def __init__(self, changed: Callable[[Instruments | None], None]) -> None:
        self._changed = changed
        self._members: list[Instrument] = []

    def add(self, instrument: Instrument, scheduler: Any, is_open: bool) -> None:
        """Tell an instrument what happens from now on; first, that the scheduler is open, if it is.

        Raises:
            TypeError: for what is no Instrument.
            ValueError: for one that is there already.
        """
        if not isinstance(instrument, Instrument):
            raise TypeError(
                f"an instrument is an object of a subclass of asyncsched.observe.Instrument, not {instrument!r}"
            )
        if self._has(instrument):
            raise ValueError(f"{instrument!r} is an instrument of this scheduler already")
        instrument.attached(scheduler)
        self._members = [*self._members, instrument]
        self._connect()
        if is_open:
            self._to_all("opened", [instrument])()

    def remove(self, instrument: Instrument) -> None:
        """Tell an instrument nothing more.

        Raises:
            ValueError: if it is not there: it was removed before, or raised.
        """
        if not self._has(instrument):
            raise ValueError(f"{instrument!r} is no instrument of this scheduler, or was removed")
        self._members = [member for member in self._members if member is not instrument]
        self._connect()
        instrument.detached()

    def remove_all(self) -> None:
        """The scheduler has closed. What one raises is logged."""
        for member in self._members:
            self._drop(member)

    def _has(self, instrument: Instrument) -> bool:
        return any(member is instrument for member in self._members)  # no `==` of theirs is asked

    def _connect(self) -> None:
        for event in EVENTS:
            base = getattr(Instrument, event)
            members = [member for member in self._members if getattr(type(member), event) is not base]
            setattr(self, event, self._to_all(event, members))
        self._changed(self if self._members else None)

    def _to_all(self, event: str, members: list[Instrument]) -> Callable[..., None]:
        methods = [(getattr(member, event), member) for member in members]

        def tell(*args: Any) -> None:
            for method, member in methods:
                try:
                    method(*args)
                except HOOK_FAILURES:
                    log.exception("the instrument %r raised, and is told no more", member)
                    self._drop(member)

        return tell if methods else _nobody

    def _drop(self, instrument: Instrument) -> None:
        if self._has(instrument):
            try:
                self.remove(instrument)
            except HOOK_FAILURES:
                log.exception("the instrument %r raised as it was removed", instrument)


def _nobody(*args: Any) -> None:
    """Called for events that no instrument has a method for."""
