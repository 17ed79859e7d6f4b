"""The table of operations: one row each, by name.

To add an operation, add a row, in one of the functions below, in `table_elementwise`, `table_linalg` or `table_nn`.
It is made of

- a *kernel*, which computes the result: the name of a function that NumPy and CuPy both have, or a function
  `kernel(xp, *arrays, **options)` in `kernels/<theme>.py`, written in terms of the namespace `xp`;
- a *rule*, in `rules/<theme>.py`, which says at once, from the operands' shapes and dtypes, what shape, dtype and
  layout the result will have, and how many bytes of temporary memory the kernel takes; it raises what NumPy would;
- what the scheduler may do with it: `out=True` if the kernel takes `out=`, `inplace=True` if that may be an operand,
  `view=True` if the result is a view. See `Op`.

If the kernel is a universal function of NumPy and CuPy, all of this follows from its name, and a line is enough::

    _UFUNCS = (..., ("cbrt", "cbrt", "The cube root."), ...)                # table_elementwise.py

Any other takes three pieces::

    def ptp(xp, x, *, axis=None):                                           # kernels/basic.py
        return xp.max(x, axis=axis) - xp.min(x, axis=axis)

    def ptp(row, operands, options):                                        # rules/reduce.py
        found = reduction(row, operands, options)
        return found._replace(workspace=2 * found.meta.nbytes)              # both before they are subtracted

    yield Row("ptp", k.ptp, r.ptp, doc="The largest less the smallest.")    # _along_axes, below

What users call goes to `tensors/functions/`, the derivative to `autograd/rules/`. `tests/gpu/cases.py` wants operands
for each row, and `tests/ops/` compares them with eager NumPy.

Below, `k` and `r` are the kernels and the rules of a theme.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from . import kernels, rules
from .cut import PRODUCTS
from .meta import Meta
from .op import Bound, Op, Operand
from .packed import packed_op
from .table_elementwise import elementwise_ops
from .table_linalg import fourier_ops, matrix_ops
from .table_nn import network_ops

_REDUCTIONS = (
    ("all", "Whether all elements along the axes are true (not zero)."),
    ("any", "Whether any element along the axes is true (not zero)."),
    ("max", "The largest element along the axes."),
    ("min", "The smallest element along the axes."),
    ("prod", "The product along the axes."),
    ("sum", "The sum along the axes."),
)

_VIEWS = (
    ("broadcast_to", "broadcast_to", "A read-only view in a larger shape, with strides of zero."),
    ("expand_dims", "expand_dims", "A view with a new axis of length one."),
    ("flip", kernels.basic.flip, "A view with the elements along the axes in reverse."),
    ("matrix_transpose", kernels.basic.matrix_transpose, "A view with the last two axes exchanged."),
    ("permute_dims", kernels.basic.permute_dims, "A view with the axes in another order."),
    ("real", kernels.basic.real, "The real part: a view; of real numbers the tensor itself."),
    ("squeeze", "squeeze", "A view without axes of length one."),
)


def _ops() -> Iterator[Op]:
    yield from elementwise_ops()
    yield from _along_axes()
    yield from _products()
    yield from matrix_ops()
    yield from fourier_ops()
    yield from _shapes()
    yield from _indexing()
    yield from _sets()
    yield from _creation()
    yield from _gradients()
    yield from _updates()
    yield from network_ops()


def _along_axes() -> Iterator[Op]:
    r, k = rules.reduce, kernels.basic
    for name, doc in _REDUCTIONS:
        yield Op(name, name, r.reduction, out=True, doc=doc)
    yield Op("mean", k.averaging("mean"), r.mean, out=True, doc="The mean along the axes.")
    yield Op("std", k.averaging("std"), r.variance, out=True, doc="The standard deviation along the axes.")
    yield Op("var", k.averaging("var"), r.variance, out=True, doc="The variance along the axes.")
    yield Op("count_nonzero", k.count_nonzero, r.count_nonzero, out=True, doc="How many elements are not zero.")
    yield Op("argmax", "argmax", r.arg_reduction, out=True, doc="Where the first largest element is.")
    yield Op("argmin", "argmin", r.arg_reduction, out=True, doc="Where the first smallest element is.")
    yield Op("cumulative_sum", k.cumulative("cumsum"), r.cumulative, out=True, doc="Running sums.")
    yield Op("cumulative_prod", k.cumulative("cumprod"), r.cumulative, out=True, doc="Running products.")
    yield Op("diff", "diff", r.diff, doc="The n-th difference of neighbours along an axis.")
    yield Op("sort", k.sort, r.sort, out=True, inplace=True, doc="The elements in order along an axis.")
    yield Op("argsort", k.argsort, r.argsort, doc="The indices that sort along an axis.")


def _products() -> Iterator[Op]:
    r, k, t = rules.linalg, kernels.basic, kernels.turns
    yield Op("matmul", "matmul", r.matmul, out=True, in_turns=t.matmul, doc="The matrix product.")
    yield Op("vecdot", k.vecdot, r.vecdot, out=True, doc="The product of vectors along an axis.")
    yield Op("tensordot", "tensordot", r.tensordot, doc="The sum of products over several axes.")
    yield Op("dot", "dot", r.dot, doc="NumPy's `dot`.")
    yield Op("einsum", k.einsum, r.einsum, doc="Products summed over the axes that a text names.")


def _shapes() -> Iterator[Op]:
    r, k, t = rules.shape, kernels.basic, kernels.turns
    for name, kernel, doc in _VIEWS:
        yield Op(name, kernel, rules.common.view_rule, view=True, doc=doc)
    yield Op("reshape", k.reshape, r.reshape, view=True, doc="Another shape, in C order: a view if possible.")
    yield Op("concat", k.concat, r.concat, out=True, doc="Tensors joined along an axis they have.")
    yield Op("stack", k.stack, r.stack, out=True, doc="Tensors joined along a new axis.")
    yield Op("repeat", "repeat", r.repeat, in_turns=t.repeat, doc="Each element several times.")
    yield Op("repeat_each", k.repeat_each, r.repeat_each, doc="Each element as often as its own number says.")
    yield Op("tile", t.tile, r.tile, doc="The tensor laid side by side.")
    yield Op("roll", "roll", r.roll, doc="The elements moved round along the axes.")


def _indexing() -> Iterator[Op]:
    r, k = rules.index, kernels.index
    yield Op("getitem", k.getitem, r.getitem, view=True, doc="A basic index: a view.")
    doc = "An index with tensors: a copy."
    yield Op("getitem_advanced", k.getitem_advanced, r.getitem_advanced, checks=True, doc=doc)
    doc = "A new version with a part assigned."
    yield Op("setitem", k.setitem, r.setitem, out=True, inplace=True, checks=True, doc=doc)
    yield Op("take", k.take, r.take, out=True, checks=True, doc="Slices along an axis, by index.")
    doc = "An element for each index on an axis."
    yield Op("take_along_axis", k.take_along_axis, r.take_along_axis, checks=True, doc=doc)
    yield Op("argwhere", k.argwhere, r.argwhere, doc="The indices of elements not zero, a row for each.")
    class_numbers = kernels.losses.class_numbers, rules.losses.class_numbers
    yield Op("class_numbers", *class_numbers, checks=True, doc="Targets that are classes, 0 where they do not count.")
    doc = "Where to insert into a sorted tensor."
    yield Op("searchsorted", k.searchsorted, r.searchsorted, checks=True, doc=doc)


def _sets() -> Iterator[Op]:
    r, k = rules.sets, kernels.sets
    yield Op("unique_values", k.unique_values, r.unique_values, doc="Each element once.")
    doc = "The same with where they are, which one each element is, and how often each is there, packed."
    yield Op("unique_packed", k.unique_packed, r.unique_packed, doc=doc)
    yield Op("isin", k.isin, r.isin, doc="Whether each element is among others.")


def _creation() -> Iterator[Op]:
    r, k = rules.create, kernels.basic
    yield Op("zeros", k.constant(0), r.filled, out=True, doc="Zeros.")
    yield Op("ones", k.constant(1), r.filled, out=True, doc="Ones.")
    yield Op("full", k.full, r.filled, out=True, doc="One value throughout.")
    yield Op("full_like", k.full_like, r.filled_like, out=True, doc="One value throughout, in a tensor's layout.")
    yield Op("arange", k.arange, r.arange, doc="Evenly spaced by a step.")
    yield Op("linspace", k.linspace, r.linspace, doc="A number of evenly spaced values.")
    yield Op("eye", k.eye, r.eye, doc="Ones on a diagonal.")
    doc = "Random numbers from the state of a generator, and the state after."
    yield packed_op("draw", kernels.random.draw, rules.random.draw, doc)
    seeded = kernels.random.draw_seeded, rules.random.draw_seeded
    yield Op("draw_seeded", *seeded, doc="Random numbers from a seed.")


def _gradients() -> Iterator[Op]:
    r, k = rules.gradients, kernels.gradients
    doc = "Zeros, with elements added where an index says."
    yield Op("scatter", k.scatter, r.scatter, out=True, checks=True, doc=doc)
    doc = "Zeros, with each element added at its index on an axis."
    yield Op("scatter_along_axis", k.scatter_along_axis, r.scatter_along_axis, out=True, checks=True, doc=doc)
    doc = "The gradient of the operand that `maximum` or `minimum` chose, shared where both are equal."
    yield Op("choice_backward", k.choice_backward, r.choice_backward, out=True, inplace=True, doc=doc)
    rule, doc = r.cumulative_prod_gradient, "The gradient of running products."
    yield Op("cumulative_prod_gradient", k.cumulative_prod_gradient, rule, out=True, doc=doc)


def _updates() -> Iterator[Op]:
    k, update = kernels.optim, rules.gradients.update
    yield Op("axpby", k.axpby, update, out=True, inplace=True, doc="a x + b y, where a and b are numbers.")
    yield Op("axpby_squared", k.axpby_squared, update, out=True, inplace=True, doc="The same with the square of y.")
    yield Op("sgd_average", k.sgd_average, update, out=True, inplace=True, doc="A running sum of decayed gradients.")
    yield Op("sgd_step", k.sgd_step, partial(update, alive=2), out=True, inplace=True, doc="A step along one.")
    yield Op("rms_scaled", k.rms_scaled, update, out=True, inplace=True, doc="x over the root of averaged squares.")
    yield Op("adam_step", k.adam_step, update, out=True, inplace=True, doc="A step of Adam.")


PRODUCT_BOUND = Bound(3e-6, 3e-5)  # of sums of some thousand products; in double precision it is much less


def _in_parts(op: Op) -> Op:
    """A product that may be cut for several threads, and inside `exact()` is not: its sums may be rounded otherwise."""
    return replace(op, exact=op, bound=PRODUCT_BOUND, plans={}, kernels={}) if op.name in PRODUCTS else op


TABLE: dict[str, Op] = {op.name: _in_parts(op) for op in _ops()}


def power_op(base: Meta, exponent: Operand) -> Op:
    """The row for the operator `**`: for some Python exponents NumPy's differs from `pow`, in speed or in bits."""
    kind = base.dtype.kind
    if type(exponent) is int:
        return TABLE["square" if exponent == 2 else "reciprocal" if exponent == -1 and kind in "fc" else "pow"]
    if type(exponent) is float and (kind == "f" or (kind == "c" and exponent == 0.5)):
        return TABLE[_FAST_POWERS.get(exponent, "pow")]
    return TABLE["pow"]


# Of complex numbers only the root: NumPy multiplies those out for 2 and -1, but not for 2.0 and -1.0.
_FAST_POWERS = {2.0: "square", 0.5: "sqrt", -1.0: "reciprocal"}
