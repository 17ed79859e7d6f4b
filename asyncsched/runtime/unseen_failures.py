"""Failures that nobody has seen, raised where a scope, a window or a scheduler ends."""

from __future__ import annotations

from .._core.model import Scope as CoreScope
from ..errors import AsyncSchedError


def report(core: CoreScope, what: str, before: int | None = None) -> None:
    """Raise the failures under `core` that nobody has seen, as one group."""
    failures, lost = core.take_failures(before)
    if failures:
        more = f" (and {lost} more)" if lost else ""
        raise BaseExceptionGroup(
            f"{what}: {len(failures)} task{'s' * (len(failures) > 1)} failed{more}, and nobody awaited them",
            [failure.exception for failure in failures],
        )
    if lost:
        raise AsyncSchedError(f"{what}: {lost} tasks failed whose exceptions were not kept, besides those already seen")


def finish(core: CoreScope, what: str, error: BaseException | None) -> None:
    """At the end of a scope: raise the unseen failures, or note them on the exception that ended it."""
    if error is None:
        report(core, what)
        return
    failures, lost = core.take_failures()
    if failures:
        kinds = ", ".join(sorted({failure.kind for failure in failures}))
        error.add_note(f"{what}: besides, {len(failures) + lost} tasks failed unseen ({kinds})")
