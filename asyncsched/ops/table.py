"""The table of operations, by name.

An operation is declared in one place: in `OPS`, at the end of the file in `kernels` with its kernel and its rule. The
fields of the `Op` state everything known about it:

- a *kernel*, which computes the result: the name of a function that NumPy and CuPy both have, or a function `kernel(xp,
  *arrays, **options)`, written in terms of the namespace `xp`;
- a *rule*, which infers the result's shape, dtype and layout from those of the operands, and the bytes of temporary
  memory that the kernel takes; it raises NumPy's errors;
- permissions for the scheduler. A field that is left out costs time, but never changes a result. Without `out` and
  `inplace`, no buffer is reused; without `element_seconds`, it goes to a stream unless it is tiny; without `cut`, one
  thread does all of it; without `ufunc` or `scalar_code`, a captured step on the host does not fuse it.

A universal function of NumPy and CuPy takes one line in `kernels/elementwise.py`; its name says the rest::

    _ufunc("cbrt", "The cube root.", Cost.LONG_FUNCTION),

Any other elementwise operation takes a kernel, and a line after it:

>>> from asyncsched.ops import plan, resolve
>>> from asyncsched.ops.declare import Cost, elementwise
>>> from asyncsched.ops.kernels.elementwise import by_sample_rule
>>> def cube(xp, x, *, out=None):
...     out = xp.square(x, out=xp.empty_like(x) if out is None else out)
...     return xp.multiply(out, x, out=out)
>>> op = elementwise(cube, by_sample_rule, "The third power.", Cost.VECTOR)  # not `in_place`: `x` is read once more
>>> resolve(op, np)(np.array([1.0, 2.0]))
array([1., 8.])
>>> plan(op, (asc.ops.meta((2,), np.dtype("f8")),), {}).meta
Meta((2,), float64, contiguous)

A line in `tensors/functions` makes it callable for users; one in `autograd/rules` is its derivative. For elementwise
operations, most tests make operands from the declaration. For others, `tests/gpu/cases.py` asks for examples.
"""

from __future__ import annotations

from importlib import import_module

from .op import Op

_THEMES = (
    "elementwise", "reduce", "products", "matrices", "shapes", "index", "create", "erf", "signal",
    "order_statistics", "histograms", "gradients", "activation", "layers", "attention", "conv", "pool",
)  # fmt: skip
_MODULES = [import_module(f".kernels.{theme}", __package__) for theme in _THEMES]
TABLE: dict[str, Op] = {op.name: op for module in _MODULES for op in module.OPS}
