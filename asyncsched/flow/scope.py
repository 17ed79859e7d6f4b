"""Scopes: groups of tasks that are waited for, reported on and cancelled together."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Self, TypeVar

from .._core.model import Scope as CoreScope
from ..errors import DeadlineExceeded, SchedulerClosed
from ..runtime.barriers import drained, shielded
from ..runtime.context import Ambient, ambient, leave_ambient
from ..runtime.runtime import Runtime
from ..runtime.unseen_failures import finish
from ..runtime.waiting import checkpoint
from .deadline import Deadline
from .submitter import Sharing, Submitter

T = TypeVar("T")


class Scope(Submitter):
    """A group of tasks that is waited for, reported on and cancelled together. Made by `s.scope()`."""

    def __init__(
        self,
        runtime: Runtime,
        parent: Callable[[], CoreScope],
        name: str,
        reserve: int | None,
        *,
        deadline: float | None = None,
        sharing: Sharing,
    ) -> None:
        self._runtime = runtime
        self._parent = parent
        self._name = name
        self._reserve = reserve
        self._deadline = None if deadline is None else Deadline(f"scope {name!r}", deadline)
        self._sharing = sharing
        self._inner: CoreScope | None = None
        self._token: contextvars.Token[Ambient | None] | None = None

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._name

    async def __aenter__(self) -> Self:
        runtime, deadline = self._runtime, self._deadline
        runtime.check()
        if self._inner is not None:
            raise RuntimeError("a scope is entered once: make another with `s.scope()`")
        if deadline is not None:
            deadline.start(self._give_up)
        try:
            core = await self._open()
        except BaseException as error:
            if deadline is not None:
                deadline.end(error)
            raise
        until = inf if deadline is None else deadline.when
        self._token = ambient.set(Ambient(runtime, core, ambient.get(), until=until))
        return self

    async def _open(self) -> CoreScope:
        await checkpoint()
        engine, sharing = self._runtime.engine, self._sharing
        core = self._inner = engine.open_scope(
            self._name,
            self._parent(),
            tenant=sharing.tenant,
            weight=sharing.weight,
            priority=sharing.priority,
        )
        if self._reserve is not None:
            try:
                await self._claim(core, f"scope {self._name!r}", self._reserve)
                engine.grant_reserve(core, self._reserve)
            except BaseException:
                engine.close_scope(core)
                raise
        return core

    def _give_up(self) -> None:
        if self._inner is not None:
            self._runtime.cancel_all(self._inner.unfinished(), str(self._deadline))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        core, what = self._core(), f"scope {self._name!r}"
        leave_ambient(self._token)
        try:
            await self._end(core, what, error)
        except DeadlineExceeded as late:
            finish(core, what, late)
            raise
        finish(core, what, error)

    async def _end(self, core: CoreScope, what: str, error: BaseException | None) -> None:
        """Wait for what is unfinished, up to the deadline if there is one."""
        deadline = self._deadline
        if deadline is None:
            await self._finish_tasks(core, what, error)
            return
        if error is not None:
            deadline.stop()
        try:
            await self._finish_tasks(core, what, error)
        except BaseException as raised:
            deadline.end(raised)
            raise
        deadline.end(error)

    async def _finish_tasks(self, core: CoreScope, what: str, error: BaseException | None) -> None:
        runtime, deadline = self._runtime, self._deadline
        late = deadline is not None and deadline.passed
        if error is not None or late:
            by = str(deadline) if late else f"{what}, which was left by {type(error).__name__}"
            runtime.cancel_all(core.unfinished(), by)
        try:
            if error is None and not late:
                await drained(runtime, core, sys.maxsize)
            else:
                await shielded(runtime, core)
        except BaseException:
            runtime.cancel_all(core.unfinished(), f"{what}, which was cancelled")
            await shielded(runtime, core)
            raise
        finally:
            if not core.tasks:
                runtime.engine.close_scope(core)
                runtime.dispatch()

    def _core(self) -> CoreScope:
        if self._inner is None:
            raise RuntimeError("the scope is not entered yet: use `async with s.scope() as scope`")
        if self._inner.closed:
            raise SchedulerClosed(
                f"scope {self._name!r} is closed: submit inside its `async with`, or through another scope"
            )
        return self._inner

    def __repr__(self) -> str:
        core, tenant, deadline = self._inner, self._sharing.tenant, self._deadline
        state = "not entered" if core is None else "closed" if core.closed else f"{len(core.unfinished())} unfinished"
        whose = "" if tenant is None else f"tenant={tenant!r}, "
        until = "" if deadline is None else f"deadline={deadline.seconds:g} s, "
        return f"Scope({self._name!r}, {whose}{until}{state})"
