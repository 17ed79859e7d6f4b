"""Optimisers: they move parameters against their gradients.

    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    loss.backward()
    optimizer.step()                    # issues tasks and returns at once
    optimizer.zero_grad()

A parameter keeps its handle and moves to a new version, as with `x[i] = v`. Tasks already issued keep the old version.
Its buffer is written over when nobody else holds it.

A step is all or nothing. `step()` issues a *commit*, which decides once, when the last gradient is finished. If all
gradients are there, every parameter and the whole state of the optimiser move, with the count of steps. If a gradient
failed or was cancelled, the step is skipped: every new version is the old buffer. So it is if the step itself was
cancelled (by its scope, a deadline, `parameter.cancel()`, or for want of bytes). So parameters never fail, tasks issued
on them go on, and the next batch trains as if this one had never been. The failure is raised once, by the next barrier
or window, or by `await loss`.

Gradients are not part of the commit. A failed gradient stays failed until `zero_grad()`, so if gradients are added up
over several batches, one bad batch skips the step. A schedule moves learning rates when the program steps it, whether a
step was skipped or not. `state["step"]` is the count of steps that were made. Not covered: a lost device, a machine out
of memory in the middle of a step, and state that a module moves in its forward pass, such as a generator.

Parameters come in one group, or in several with settings of their own: dicts as in PyTorch, in `param_groups`.
`schedules` has learning rates that change from step to step. The formulas are those of PyTorch's documentation of the
classes of the same names.
"""

from .. import _instead
from . import schedules
from .optimizer import SGD, Adam, AdamW, Group, Optimizer, RMSprop

__all__ = ["SGD", "Adam", "AdamW", "Group", "Optimizer", "RMSprop", "schedules"]

_instead.explain_missing(globals(), "asyncsched.optim", _instead.OPTIM)
