"""The interface by which tensors call autograd, a room above them. The face of the package fills the hook.

A recorded tensor carries a node of the tape, and an operation on it calls `node.record`. The hook serves what needs no
node, makes one, or goes back along all nodes. (If `backward` were a method of the node, the tape would have to know the
backward pass, which knows the tape.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Autograd(Protocol):
    """The functions behind a tensor's properties and methods. The module `asyncsched.autograd` defines them."""

    def track(self, tensor: Any, wanted: bool, /) -> None:
        """Carry out `tensor.requires_grad = wanted`."""

    def set_grad(self, tensor: Any, gradient: Any, /) -> None:
        """Carry out `tensor.grad = gradient`."""

    def backward(self, output: Any, gradient: Any, /, *, retain_graph: bool) -> None:
        """Carry out `output.backward(gradient)`."""


autograd: Callable[[], Autograd]  # imports the module at the first call
