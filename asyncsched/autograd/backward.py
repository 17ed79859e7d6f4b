"""The backward pass along the tape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, overload

from ..tensors.functions import full_like
from ..tensors.handles import runtime_of
from ..tensors.tensor import Tensor, handle
from .tape import Node, check_like
from .transaction import transaction

_Gradients = dict[Node, Tensor]
_Several = Tensor | Sequence[Tensor]


def backward(output: Tensor, gradient: Tensor | None = None, *, retain_graph: bool = False) -> None:
    """Carry out `output.backward(gradient)`: see there."""
    runtime = runtime_of(output._value)
    with transaction(runtime, "backward()", expedited=True):
        gradients = _seeds([output], None if gradient is None else [gradient], tracked=False)
        nodes = _reachable(gradients)
        leaves = [node for node in nodes if node.leaf]
        _sweep(nodes, gradients, set(leaves), tracked=False)
        sums = [gradients[leaf] if leaf.grad is None else leaf.grad + gradients[leaf] for leaf in leaves]
    # All tasks are issued and none is launched: the sums may overwrite gradients that are dropped here.
    for leaf, total in zip(leaves, sums, strict=True):
        leaf.grad = total.detach()
    for watcher in runtime.step_watchers:
        watcher.learned()
    del gradients, sums
    if not retain_graph:
        for node in nodes:
            node.drop()
    runtime.dispatch()


@overload
def grad(
    outputs: _Several, inputs: _Several, gradients: Sequence[Tensor] | None = None, *, create_graph: bool = False,
    retain_graph: bool | None = None, allow_unused: Literal[False] = False,
) -> list[Tensor]: ...  # fmt: skip


@overload
def grad(
    outputs: _Several, inputs: _Several, gradients: Sequence[Tensor] | None = None, *, create_graph: bool = False,
    retain_graph: bool | None = None, allow_unused: bool,
) -> list[Tensor | None]: ...  # fmt: skip


def grad(
    outputs: _Several,
    inputs: _Several,
    gradients: Sequence[Tensor] | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool = False,
) -> list[Tensor] | list[Tensor | None]:
    """The gradients of `outputs` with respect to `inputs`. Does not change `t.grad`.

    Args:
        outputs: one tensor or several; of several, the gradients are added.
        inputs: a tracked tensor or several, leaves or not.
        gradients: one for each output, in its shape; by default 1, for outputs that are single numbers.
        create_graph: record the gradients themselves, so that they can be differentiated, too.
        retain_graph: keep the recorded operations for another pass; by default the same as `create_graph`.
        allow_unused: return None for an input that no output depends on, instead of raising.

    Raises:
        ValueError: for an output that was not recorded, or an input that no output depends on.
        RuntimeError: if an earlier pass has dropped the recorded operations.
        QueueFull: if the backlog has no room for all tasks; then nothing has changed.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array(3.0))
    ...         x.requires_grad = True
    ...         (slope,) = asc.autograd.grad(x**3, x, create_graph=True)
    ...         (bend,) = asc.autograd.grad(slope, x)
    ...         return await slope.item(), await bend.item()
    >>> asc.run(main)
    (27.0, 18.0)
    """
    roots, inputs = [[given] if isinstance(given, Tensor) else list(given) for given in (outputs, inputs)]
    if not roots:
        raise ValueError("grad needs at least one output")
    runtime = runtime_of(roots[0]._value)
    with transaction(runtime, "grad()", expedited=True, captured=True):
        found = _seeds(roots, gradients, tracked=create_graph)
        nodes = _reachable(found)
        reached, wanted = set(nodes), [tensor._node for tensor in inputs]
        for i, node in enumerate(wanted):
            if node not in reached and not allow_unused:
                raise ValueError(
                    f"input {i} is not tracked, or no output depends on it, so it has no gradient: with"
                    " `allow_unused=True` it is None"
                )
        passed = _sweep(nodes, found, reached.intersection(wanted), tracked=create_graph)
        # New handles: the same tensor may be the gradient of two inputs.
        results = [handle(found[node]._lease(), found[node]._node) if node in reached else None for node in wanted]
    del found
    if not (create_graph if retain_graph is None else retain_graph):
        for node in passed:
            node.drop()
    runtime.dispatch()
    return results


def _seeds(outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, *, tracked: bool) -> _Gradients:
    """The gradients of the outputs, with which the pass begins."""
    if gradients is not None and len(gradients) != len(outputs):
        raise ValueError(f"{len(outputs)} outputs need as many gradients, not {len(gradients)}")
    seeds: _Gradients = {}
    for i, output in enumerate(outputs):
        if output._node is None:
            raise ValueError("this tensor was not recorded: set `requires_grad` on a tensor that it is computed from")
        seed = _one(output) if gradients is None else gradients[i]
        check_like(seed, output._value.meta)
        _add(seeds, output._node, seed if tracked else seed.detach())
    return seeds


def _one(output: Tensor) -> Tensor:
    if output.size != 1:
        raise ValueError(
            f"a tensor of shape {output.shape} needs `gradient`: pass one, or reduce the tensor to a number"
        )
    return full_like(output.detach(), 1)


def _reachable(roots: Iterable[Node]) -> list[Node]:
    """All nodes from which the roots were computed, and the roots, each before its operands."""
    found: set[Node] = set()
    todo = list(roots)
    while todo:
        node = todo.pop()
        if node not in found:
            if not (node.leaf or node.parents):
                raise RuntimeError(
                    "an earlier pass dropped what this gradient needs: call that one with `retain_graph=True`"
                )
            found.add(node)
            todo += [parent for parent in node.parents if parent is not None]
    return sorted(found, key=lambda node: node.number, reverse=True)


def _sweep(nodes: list[Node], gradients: _Gradients, wanted: set[Node], *, tracked: bool) -> list[Node]:
    """Bring the gradients from the first nodes to the wanted ones. Returns the nodes in between."""
    leading, passed = set(wanted), []
    for node in reversed(nodes):
        if not leading.isdisjoint(node.parents):
            leading.add(node)
            passed.append(node)
    for node in reversed(passed):
        gradient = gradients.get(node) if node in wanted else gradients.pop(node, None)
        if gradient is not None:
            for place, parent in enumerate(node.parents):
                if parent in leading:
                    _add(gradients, parent, node.pull(place, gradient, tracked))
    return passed


def _add(gradients: _Gradients, node: Node, gradient: Tensor) -> None:
    before = gradients.get(node)
    gradients[node] = gradient if before is None else before + gradient
