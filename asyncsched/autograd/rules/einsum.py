"""The derivative of `einsum`, which is another."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

from ...ops.kernels.products import einsum_letters
from ...tensors import functions as f
from ...tensors.functions._common import known_shape, op
from ...tensors.handles import runtime_of
from ...tensors.tensor import Tensor
from .common import Rules


def _einsum(g: Tensor, operands: tuple[Any, ...], call: Any) -> Tensor:
    """The sum of products of the gradient and the other operands, over the axes that this one has not.

    An axis that it has twice ("ii") is another one in the gradient, joined to the first by a unit matrix; over one that
    nobody else has the gradient is constant.
    """
    terms, output = _letters(call)
    own, place = terms.pop(call.place), call.place
    factors: list[Any] = [g, *operands[:place], *operands[place + 1 :]]
    terms.insert(0, output)
    free = (letter for letter in ascii_letters if letter not in "".join([own, *terms]))
    wanted = ""
    for letter, length in zip(own, call.metas[place].shape, strict=True):
        if letter in wanted:
            first, letter = letter, next(free)
            factors.append(f.eye(length, dtype=g.dtype, device=g.device, scheduler=runtime_of(g._value)))
            terms.append(first + letter)
        wanted += letter
    known = "".join([letter for letter in wanted if letter in "".join(terms)])
    found = op("einsum", *factors, subscripts=f"{','.join(terms)}->{known}")
    if known != wanted:
        found = f.expand_dims(found, axis=tuple([i for i, letter in enumerate(wanted) if letter not in known]))
    # What this operand was broadcast to is summed later. Along what the others were broadcast to it is the same.
    whole = [a if b == 1 else b for a, b in zip(known_shape(found, "einsum"), call.metas[place].shape, strict=True)]
    return found if found.shape == tuple(whole) else f.broadcast_to(found, whole)


def _letters(call: Any) -> tuple[list[str], str]:
    """A letter for each axis of each operand, and of the result; also for those that an ellipsis stands for."""
    terms, output = einsum_letters(call.options["subscripts"], [len(getattr(m, "shape", ())) for m in call.metas])
    free = (letter for letter in reversed(ascii_letters) if letter not in "".join(terms))
    names = {digit: next(free) for digit in sorted(set("".join(terms))) if digit.isdigit()}
    table = str.maketrans(names)
    return [term.translate(table) for term in terms], output.translate(table)


EINSUM: Rules = {"einsum": (_einsum,)}
