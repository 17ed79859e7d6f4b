"""Gradients: a tape over tensors, and one table of derivatives.

    w = await s.put(a)
    w.requires_grad = True              # a leaf: what is computed from it is recorded
    loss = ((x @ w - y) ** 2).mean()
    loss.backward()                     # issues tasks and returns at once
    await w.grad                        # a Tensor like any other

- `t.requires_grad`, `t.grad`, `t.detach()` and `t.backward(gradient=None, retain_graph=False)` are the tensor's side.
- `with no_grad():` (also `@no_grad()`, for functions and coroutine functions) records nothing.
- `grad(outputs, inputs, gradients=None, create_graph=False)` returns gradients and leaves `t.grad` alone; with
  `create_graph` they are recorded themselves, for higher orders.
- `await gradcheck(fn, *arrays)` compares with central differences.

Leaves are real floating-point tensors. Between them and the result there may be complex ones, as of a Fourier
transform: `rules` has what may be done with those. What `await`, `submit` and `call` read is a constant to the
tape.

The tape. What is computed from a tracked tensor gets a `Node`, which holds the nodes of its operands and those values
that its derivatives read (residuals: charged to the byte budget like any value that is held), but never a handle. So
references lead from results to operands only, and nothing waits for the garbage collector. `backward` drops what a
node holds once the tasks that read it are issued; their bytes return as these end.

A rule. `RULES[op.name]` is a tuple of functions, one for each operand of the operation; None where there is nothing to
differentiate, and the last one serves all operands beyond. A function gives the gradient of its operand, and the
*names* of its parameters say what it needs, so that nothing else is kept:

    g           the gradient of the result
    x, y, z     the first, second, third operand: a Tensor, or the number that was given
    indices     a tuple of the operands of integer or boolean dtype
    operands    a tuple of all operands, where there may be more than three
    out         the result
    call        what costs nothing to keep: `call.options`, `call.metas` (shape and dtype of each operand, or the
                number), `call.place` (which operand this is for) and `call.device`

It is written with tensor operations, which makes higher orders work by themselves. It need not care for broadcasting
or dtypes: its result is summed and cast to the operand's own shape and dtype (`fit`). Your own operation joins so:

    TABLE["softplus"] = Op("softplus", kernel, rules.elementwise.by_sample, doc="log(1 + exp(x)).")
    RULES["softplus"] = (lambda g, x: g / (1 + asc.exp(-x)),)
    TABLE["scale"] = Op("scale", "multiply", rules.elementwise.ufunc, out=True, inplace=True, doc="x * y.")
    RULES["scale"] = (lambda g, y: g * y, lambda g, x: g * x)
    def softplus(x): return apply(TABLE["softplus"], (x,))

A derivative that is one fused operation is fast, and has no derivative itself. `COMPOSED[op.name]` has it once more,
written with operations that have one. It is used where gradients are recorded, as with `create_graph`, and reads no
more than the first.

An operation without a rule raises NotImplementedError as soon as a tracked tensor meets it, if its result is a
floating-point one; integers and booleans have no gradient.
"""

from .backward import backward, grad
from .check import gradcheck
from .rules import COMPOSED, RULES
from .tape import fit, no_grad, set_grad, track

__all__ = ["COMPOSED", "RULES", "backward", "fit", "grad", "gradcheck", "no_grad", "set_grad", "track"]
