"""What tensors ask of autograd, a room above them: `asyncsched.autograd` fills `hook` when it is imported.

A tensor that is recorded carries a node of the tape, and an operation on it calls `node.record`. What needs no node,
makes one, or goes back along all of them is asked of the hook. (Were `backward` a method of the node, the tape would
have to know the pass that goes back along it, which knows the tape.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Autograd(NamedTuple):
    """The functions behind the properties and methods of a tensor, which is the first argument of each."""

    track: Callable[[Any, bool], None]  # tensor.requires_grad = wanted
    set_grad: Callable[[Any, Any], None]  # tensor.grad = gradient
    backward: Callable[..., None]  # tensor.backward(gradient, retain_graph=...)


hook: Autograd
