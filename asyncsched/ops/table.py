"""The table of operations, by name.

An operation is declared in one place: in `OPS`, at the end of the file in `kernels` that its kernel is in. There stands
all that is known of it, as the fields of an `Op`:

- a *kernel*, which computes the result: the name of a function that NumPy and CuPy both have, or a function
  `kernel(xp, *arrays, **options)`, written in terms of the namespace `xp`;
- a *rule*, from `rules`, which says at once, from the operands' shapes and dtypes, what shape, dtype and layout the
  result will have, and how many bytes of temporary memory the kernel takes; it raises what NumPy would;
- what the scheduler may do with it. A field that is left out costs speed, never a result: without `out` or `inplace` no
  buffer is used again, without `element_seconds` only tiny operands run on the loop's thread, without `cut` one thread
  does all the work, and without a `ufunc` or `scalar_code` a captured step does not fuse it.

If the kernel is a universal function, its name is enough, and a line in `kernels/elementwise.py`:

>>> cbrt = _ufunc("cbrt", "The cube root.", Cost.LONG_FUNCTION)

Any other elementwise operation takes a kernel, and a line after it:

>>> def heaviside(xp, x, *, out=None):
...     return xp.greater_equal(x, 0, out=xp.empty_like(x) if out is None else out, casting="unsafe")
>>> step = elementwise(heaviside, rules.layers.elementwise, "1 from 0 on, and 0 before.", element_seconds=Cost.SCALAR)
>>> resolve(step, np)(np.array([-1.0, 0.0, 2.0]))
array([0., 1., 1.])
>>> plan(step, (meta((3,), np.dtype("f8")),), {}).meta
Meta((3,), float64, contiguous)

What users call is one more line in `tensors/functions`, and the derivative one in `autograd/rules`. The tests take
operands for elementwise operations from the declaration; for others `tests/gpu/cases.py` wants some, and `tests/ops`
compares with eager NumPy.
"""

from __future__ import annotations

from .kernels import (
    activation,
    attention,
    convolutions,
    create,
    elementwise,
    fourier,
    gelu,
    gradients,
    index,
    layers,
    losses,
    matrices,
    optim,
    pool,
    products,
    random,
    reduce,
    sets,
    shapes,
    softmax,
)
from .op import Op

_THEMES: tuple[tuple[Op, ...], ...] = (
    elementwise.OPS, reduce.OPS, products.OPS, matrices.OPS, fourier.OPS, shapes.OPS, index.OPS, sets.OPS, create.OPS,
    random.OPS, gradients.OPS, optim.OPS, activation.OPS, gelu.OPS, softmax.OPS, layers.OPS, losses.OPS, attention.OPS,
    convolutions.OPS, pool.OPS,
)  # fmt: skip

TABLE: dict[str, Op] = {op.name: op for theme in _THEMES for op in theme}
