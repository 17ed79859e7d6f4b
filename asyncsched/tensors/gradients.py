"""What tensors ask of autograd, a room above them, through the one hook that the face of the package fills.

A tensor that is recorded carries a node of the tape, and an operation on it calls `node.record`. What needs no node,
makes one, or goes back along all of them is asked of the hook. (Were `backward` a method of the node, the tape would
have to know the pass that goes back along it, which knows the tape.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Autograd(Protocol):
    """The functions behind the properties and methods of a tensor. The module `asyncsched.autograd` has them."""

    def track(self, tensor: Any, wanted: bool, /) -> None:
        """What `tensor.requires_grad = wanted` does."""

    def set_grad(self, tensor: Any, gradient: Any, /) -> None:
        """What `tensor.grad = gradient` does."""

    def backward(self, output: Any, gradient: Any, /, *, retain_graph: bool) -> None:
        """What `output.backward(gradient)` does."""


autograd: Callable[[], Autograd]  # imports it when it is first called
