"""Gradients: a tape over tensors, and one table of derivatives.

    w = await s.put(a)
    w.requires_grad = True              # a leaf: operations on it are recorded
    loss = ((x @ w - y) ** 2).mean()
    loss.backward()                     # issues tasks and returns at once
    await w.grad                        # a Tensor like any other

- `t.requires_grad`, `t.grad`, `t.detach()` and `t.backward(gradient=None, retain_graph=False)` are the tensor's side.
- `with no_grad():` (also `@no_grad()`, for functions and coroutine functions) records nothing.
- `grad(outputs, inputs, gradients=None, create_graph=False)` returns gradients and leaves `t.grad` alone; with
  `create_graph` they are recorded themselves, for higher orders.
- `await gradcheck(fn, *arrays)` compares with central differences.

Leaves are real floating-point tensors. Tensors between them and the result may be complex, as with a Fourier transform:
`rules` says which operations support that. The tape treats everything that `await`, `submit` and `call` read as a
constant.

The tape. A result computed from a tracked tensor gets a `Node`. The node holds the nodes of the operands, and the
values that the derivatives read (residuals: charged to the byte budget like any held value), but never a handle. So
references lead only from results to operands, and nothing waits for the garbage collector. `backward` drops a node's
references once it has issued the tasks that read them; the bytes come back as these tasks end.

A rule. `RULES[op.name]` is a tuple of functions, one for each operand of the operation. None means that no gradient
goes to the operand; the last function serves all further operands. A function returns the gradient of its operand. The
*names* of its parameters say what it reads, so that nothing else is kept:

    g           the gradient of the result
    x, y, z     the first, second, third operand: a Tensor, or a number
    indices     a tuple of the operands of integer or boolean dtype
    operands    a tuple of all operands, if there may be more than three
    out         the result
    call        facts that cost nothing to keep: `call.options`, `call.metas` (shape and dtype of each operand, or the
                number), `call.place` (the position of this function's operand) and `call.device`

A rule is written with tensor operations, so higher orders follow by themselves. It need not handle broadcasting or
dtypes: its result is summed and cast to the operand's shape and dtype (`fit`). To add an operation of your own (`apply`
is in `asyncsched.tensors.tensor`; `help(asyncsched.ops.table)` shows a kernel and has the other names):

    TABLE["cube"] = elementwise(cube, by_sample_rule, "The third power.", Cost.VECTOR)
    RULES["cube"] = (lambda g, x: g * (3 * x * x),)
    def cube(x): return apply(TABLE["cube"], (x,))

A derivative that is one fused operation is fast, but has no derivative itself. `COMPOSED[op.name]` has it a second
time, written with operations that have one. That version is used where gradients are recorded, as with `create_graph`.
It reads no more than the first version.

An operation without a rule raises NotImplementedError when a tracked tensor is its operand and its result is a
floating-point one. Integers and booleans have no gradient.
"""

from .. import _instead
from .backward import backward, grad, gradcheck
from .rules import COMPOSED, RULES
from .tape import fit, no_grad, set_grad, track

__all__ = ["COMPOSED", "RULES", "backward", "fit", "grad", "gradcheck", "no_grad", "set_grad", "track"]

_instead.explain_missing(globals(), "asyncsched.autograd", _instead.AUTOGRAD)
