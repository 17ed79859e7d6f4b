"""The one observer that an engine and its streams know. It forwards events to the instruments of a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._arguments import check_plain
from .._core.instrument import EVENTS, Instrument
from .._system import HOOK_FAILURES, log


class Instruments(Instrument):
    """Forwards each event to the instruments that override it. Has a method for each event.

    An instrument that raises is logged and removed: it would not understand later events, and the scheduler must go on.

    Args:
        changed: called with this object when the first instrument is added, and with None when the last is removed.
    """

    def __init__(self, changed: Callable[[Instruments | None], None]) -> None:
        self._changed = changed
        self._members: list[Instrument] = []
        self.asked: set[str] = set()  # events that an instrument overrides

    def add(self, instrument: Instrument, scheduler: Any, is_open: bool) -> None:
        """Tell an instrument every event from now on; first, that the scheduler is open, if it is.

        Raises:
            TypeError: for an object that is no Instrument.
            ValueError: for an instrument that was added before.
        """
        if not isinstance(instrument, Instrument):
            raise TypeError(
                f"an instrument is an object of a subclass of asyncsched.observe.Instrument, not {instrument!r}"
            )
        for event in EVENTS:
            check_plain(f"the method {event} of an instrument", getattr(instrument, event))
        if self._has(instrument):
            raise ValueError(f"{instrument!r} is an instrument of this scheduler already")
        instrument.attached(scheduler)
        self._members = [*self._members, instrument]
        self._connect()
        if is_open:
            self._to_all("opened", [instrument])()

    def remove(self, instrument: Instrument) -> None:
        """Tell an instrument no more events.

        Raises:
            ValueError: if it is not there: it was removed before, or it raised.
        """
        if not self._has(instrument):
            raise ValueError(f"{instrument!r} is no instrument of this scheduler, or was removed")
        self._members = [member for member in self._members if member is not instrument]
        self._connect()
        instrument.detached()

    def remove_all(self) -> None:
        """Remove all instruments, since the scheduler has closed. Logs the exceptions they raise."""
        for member in self._members:
            self._drop(member)

    def _has(self, instrument: Instrument) -> bool:
        return any(member is instrument for member in self._members)  # without `==`, which an instrument may define

    def _connect(self) -> None:
        self.asked.clear()
        for event in EVENTS:
            base = getattr(Instrument, event)
            members = [one for one in self._members if getattr(getattr(one, event), "__func__", None) is not base]
            setattr(self, event, self._to_all(event, members) if members else _nobody)
            self.asked |= {event} if members else set()
        self._changed(self if self._members else None)

    def _to_all(self, event: str, members: list[Instrument]) -> Callable[..., None]:
        methods = [(getattr(member, event), member) for member in members]

        def tell(*args: Any) -> None:
            for method, member in methods:
                try:
                    method(*args)
                except HOOK_FAILURES:
                    log.exception("the instrument %r raised, and was removed", member)
                    self._drop(member)

        return tell

    def _drop(self, instrument: Instrument) -> None:
        if self._has(instrument):
            try:
                self.remove(instrument)
            except HOOK_FAILURES:
                log.exception("the instrument %r raised as it was removed", instrument)


def _nobody(*args: Any) -> None:
    """An event that no instrument asks for."""
