"""The backward pass along the tape, and a comparison of its gradients with central differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, overload

import numpy as np

from .._arguments import check_plain
from ..runtime.context import current_scope, find
from ..runtime.runtime import Runtime
from ..tensors.functions import full_like
from ..tensors.handles import runtime_of
from ..tensors.putting import importable, make_put
from ..tensors.tensor import Tensor, handle
from .tape import Node, check_like
from .transaction import transaction

_Gradients = dict[Node, Tensor]
_Several = Tensor | Sequence[Tensor]
Array = np.ndarray[Any, Any]


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


async def gradcheck(
    fn: Callable[..., Tensor],
    *inputs: Array,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    scheduler: Any = None,
) -> None:
    """Compare the gradients of `fn` with central differences, (f(x + eps) - f(x - eps)) / 2 eps for each element.

    The result of `fn` is weighted by random numbers (always the same) and summed, so one pass covers all its elements.

    Args:
        fn: from tensors to one tensor of floating-point numbers.
        inputs: arrays in float64, more than `eps` away from kinks. Gradients are checked for each.
        eps: the step.
        atol, rtol: the largest deviation of a gradient from the difference d: atol + rtol * abs(d).
        scheduler: default: the ambient one.

    Raises:
        AssertionError: names the element with the largest error.
        TypeError: for inputs of another dtype.
    """
    check_plain("fn", fn)
    for i, array in enumerate(inputs):
        if not isinstance(array, np.ndarray) or array.dtype != np.float64:
            raise TypeError(f"gradcheck: input {i} must be an ndarray of float64: `a.astype(float)` makes one")
    runtime = find(scheduler)
    tensors = [_put(runtime, array) for array in inputs]
    for tensor in tensors:
        tensor.requires_grad = True
    out = fn(*tensors)
    weights = np.random.default_rng(0).uniform(0.5, 1.5, (await out).shape)

    async def moved(i: int, place: tuple[int, ...], step: float) -> Any:
        """The weighted sum, with one element of one input moved by a step."""
        arrays = [array.copy() for array in inputs]
        arrays[i][place] += step
        return np.sum(weights * await fn(*[_put(runtime, array) for array in arrays]))

    for i, gradient in enumerate(grad([out], tensors, [_put(runtime, weights.astype(out.dtype))])):
        got, expected = await gradient, np.empty(inputs[i].shape)
        for place in np.ndindex(expected.shape):
            expected[place] = (await moved(i, place, eps) - await moved(i, place, -eps)) / (2 * eps)
        _compare(i, got, expected, atol, rtol)


def _compare(i: int, got: Array, expected: Array, atol: float, rtol: float) -> None:
    excess = np.abs(got - expected) - (atol + rtol * np.abs(expected))
    if not np.all(excess <= 0):  # also for a gradient that is NaN
        worst = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), excess.shape)
        raise AssertionError(
            f"input {i}, element {tuple([int(n) for n in worst])}: the gradient is {got[worst]:.9g},"
            f" the central difference {expected[worst]:.9g}"
        )


def _put(runtime: Runtime, array: Array) -> Tensor:
    return make_put(runtime, current_scope(runtime), importable(runtime, array.copy(), None), bounded=False)[1]
