"""Failures that nobody has seen, raised where a scope, a window or a scheduler ends."""

from __future__ import annotations

from .._arguments import counted
from .._core.model import Scope as CoreScope
from ..errors import AsyncSchedError, add_note


def report(core: CoreScope, what: str, before: int | None = None) -> None:
    """Raise the failures under `core` that nobody has seen, as one group."""
    failures, lost = core.take_failures(before)
    if failures:
        more = f" (and {lost} more)" if lost else ""
        raise BaseExceptionGroup(
            f"{what}: {counted(len(failures), 'task')} failed{more}, and nobody awaited them",
            [failure.exception for failure in failures],
        )
    if lost:
        raise AsyncSchedError(f"{what}: {counted(lost, 'task')} failed unseen whose exceptions were not kept")


def finish(core: CoreScope, what: str, error: BaseException | None) -> None:
    """At the end of a scope: raise the unseen failures, or note them on the exception that ended it."""
    if error is None:
        report(core, what)
        return
    failures, lost = core.take_failures()
    if failures or lost:
        kinds = ", ".join(sorted({failure.kind for failure in failures})) or "whose exceptions were not kept"
        add_note(error, f"{what}: besides, {counted(len(failures) + lost, 'task')} failed unseen ({kinds})")
