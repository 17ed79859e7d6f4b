"""Optimisers: they move parameters against their gradients.

    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    loss.backward()
    optimizer.step()                    # issues tasks and returns at once
    optimizer.zero_grad()

A parameter keeps its handle and moves to a new version, as with `x[i] = v`: tasks already issued keep the old one, and
its buffer is written over when nobody else holds it.

A step is all or nothing. `step()` issues a *commit*, which decides once, when the last gradient is finished: if all are
there, every parameter and all that the optimiser keeps move, the count of steps included. If one failed or was
cancelled, or the step was (by its scope, a deadline, `parameter.cancel()`, or for want of bytes), it is skipped: every
new version is the old buffer. So parameters never fail, what was issued on them goes on, and the next batch trains as
if this one had never been. What failed is told once, by the next barrier or window, or by `await loss`.

Gradients are not part of it: one that failed stays so until `zero_grad()`, so of gradients added up over several
batches one bad batch skips the step. Learning rates set by a schedule move when the program steps it, whether a step
was skipped or not; `state["step"]` is the count of steps that were made. Not covered: a lost device, a machine out of
memory in the middle of a step, and what a module moves in its forward pass, such as a generator.

Parameters come in one group, or in several with settings of their own: dicts as in PyTorch, in `param_groups`.
`schedules` has learning rates that change from step to step. The formulas are those of PyTorch's documentation of the
classes of the same names.
"""

from .. import _instead
from . import schedules
from .optimizer import Group, Optimizer
from .optimizers import SGD, Adam, AdamW, RMSprop

__all__ = ["SGD", "Adam", "AdamW", "Group", "Optimizer", "RMSprop", "schedules"]

_instead.explain_missing(globals(), "asyncsched.optim", _instead.OPTIM)
