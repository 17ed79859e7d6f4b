"""A task as it travels: what is to be done, and with what."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .._core.model import Task, Value
from ..ops.op import Op
from ..runtime.threads import in_thread
from .card import OnCard
from .memory import Remote, standing
from .programs import is_captured
from .work import Step, Work


async def packed(task: Task, gpu: bool) -> tuple[Work, list[Any]]:
    """The work of a task whose operands were sent, and those: Dask's futures, and arrays that are here."""
    found = [await _operand(value) for value in task.inputs]
    views = tuple([one.views if isinstance(one, Remote) else () for one in found])
    operands = [one.future if isinstance(one, Remote) else _for_card(one) if gpu else one for one in found]
    if isinstance(task.call, Op):
        args = task.args if task.args is None or not gpu else tuple([_for_card(a) for a in task.args])
        form = _form(task) if is_captured(task.call) else None
        return Work(task.call, args, task.options or {}, views, form, gpu), operands
    return Work(task.call, task.args, {}, views, _form(task), gpu), operands


def _form(task: Task) -> Any:
    """Shape and dtype of what it is to give, if that is known."""
    found = None if task.value is None else task.value.meta
    return None if found is None else (found.shape, found.dtype)


def view_made(task: Task) -> Step | None:
    """The view that a task makes, if it is a view of known shape of something on a worker."""
    value, op = task.value, task.call
    if value is None or value.base is None or not value.meta.known or not isinstance(op, Op) or not op.view:
        return None
    known = len(task.inputs) == 1 and isinstance(standing(task.inputs[0]), Remote)
    return Step(op, task.args, task.options or {}) if known and task.move is None else None


async def _operand(value: Value) -> Any:
    """What stands for a value; of another device's an array, which is copied here first."""
    found = standing(value)
    if isinstance(found, Remote) or value.device.remote or value.device.inline:
        return found
    return await in_thread(partial(value.device.fetch, found), "copies out")


def _for_card(found: Any) -> Any:
    return OnCard(found) if isinstance(found, np.ndarray) else found
