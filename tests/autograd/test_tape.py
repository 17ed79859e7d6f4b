"""What is recorded, what is kept, and when it is let go."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import asyncsched as asc
from asyncsched.autograd import RULES
from asyncsched.devices import CPUDevice
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply

pytestmark = pytest.mark.one_loop


async def leaf(s: asc.Scheduler, array: object) -> asc.Tensor:
    tensor = await s.put(np.asarray(array))
    tensor.requires_grad = True
    return tensor


def retained(s: asc.Scheduler) -> int:
    return s.statistics().bytes_retained


# -- leaves ---------------------------------------------------------------------------------------------------------


async def test_a_put_tensor_is_not_tracked_until_asked_for(s):
    x = await s.put(np.ones(3))
    assert not x.requires_grad
    assert not (x * 2).requires_grad
    x.requires_grad = True
    x.requires_grad = True  # which changes nothing
    y = x * 2
    assert y.requires_grad
    assert x.grad is None
    assert y.grad is None
    x.requires_grad = False
    assert not (x * 2).requires_grad
    with pytest.raises(RuntimeError, match="`t.detach\\(\\)`"):
        y.requires_grad = False
    assert not y.detach().requires_grad


@pytest.mark.parametrize("dtype", ["i8", "?", "c16"])
async def test_only_real_floating_point_tensors_have_gradients(s, dtype):
    x = await s.put(np.ones(3, dtype))
    with pytest.raises(TypeError, match="astype"):
        x.requires_grad = True


async def test_integers_and_booleans_end_the_tape(s):
    x = await leaf(s, [1.0, 2.0])
    for result in (x > 1, asc.argmax(x), x.astype(int), asc.isnan(x)):
        assert not result.requires_grad


async def test_a_gradient_may_be_replaced_by_one_like_it(s):
    x = await leaf(s, np.ones(3))
    (x * 2).sum().backward()
    assert x.grad is not None
    x.grad = x.grad / 4
    assert_array_equal(await x.grad, [0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match="must be like its tensor"):
        x.grad = x.grad[:2]
    with pytest.raises(ValueError, match="must be like its tensor"):
        x.grad = x.grad.astype("f4")
    with pytest.raises(TypeError, match="a Tensor or None"):
        x.grad = 1.0
    with pytest.raises(RuntimeError, match="requires_grad"):
        (x * 2).grad = x.grad
    x.grad = None
    assert x.grad is None


# -- no_grad --------------------------------------------------------------------------------------------------------


async def test_no_grad_records_nothing_in_its_block_alone(s):
    x = await leaf(s, np.ones(3))
    with asc.no_grad():
        assert not (x * 2).requires_grad
        with asc.no_grad():
            pass
        assert not (x * 2).requires_grad
        assert x.requires_grad
    assert (x * 2).requires_grad
    with pytest.raises(KeyError), asc.no_grad():
        raise KeyError
    assert (x * 2).requires_grad


async def test_no_grad_decorates_functions_and_coroutine_functions(s):
    @asc.no_grad()
    def double(x):
        return x * 2

    @asc.no_grad()
    async def later(x):
        await asyncio.sleep(0)
        return x * 2

    class Later:
        async def __call__(self, x):
            await asyncio.sleep(0)
            return x * 2

    x = await leaf(s, np.ones(3))
    all_later = asyncio.gather(later(x), later(x), asc.no_grad()(Later())(x))
    assert (x * 2).requires_grad
    for y in (double(x), *await all_later):
        assert not y.requires_grad
    assert double.__name__ == "double"


async def test_no_grad_is_no_decorator_of_generators():
    """Their bodies run after the call, when it holds no longer."""

    def numbers():
        yield

    async def later():
        yield

    for generator in (numbers, later):
        with pytest.raises(TypeError, match="use a `with` block in it"):
            asc.no_grad()(generator)


# -- what cannot be recorded ----------------------------------------------------------------------------------------


async def test_a_row_without_a_rule_says_so_at_once(s):
    x = await leaf(s, np.ones(3))
    with pytest.raises(NotImplementedError, match="nextafter: no derivative is known: use `t.detach"):
        asc.nextafter(x, 2.0)
    with pytest.raises(NotImplementedError, match="asin: no derivative is known for complex numbers: use `t.detach"):
        asc.asin(x * 1j)
    with asc.no_grad():
        asc.nextafter(x, 2.0)


async def test_a_rule_of_ones_own(s, monkeypatch):
    monkeypatch.setitem(RULES, "nextafter", (lambda g: g * 3, None))
    x, y = await leaf(s, np.ones(3)), await leaf(s, np.ones(3))
    apply(TABLE["nextafter"], (x, y)).sum().backward()
    assert_array_equal(await x.grad, [3, 3, 3])
    assert y.grad is None
    assert not asc.nextafter(x.detach(), y).requires_grad


async def test_part_of_a_leaf_is_assigned_only_unrecorded(s):
    x = await leaf(s, [1.0, 2.0, 3.0])
    with pytest.raises(RuntimeError, match=r"with no_grad\(\):"):
        x[0] = 5.0
    with asc.no_grad():
        x[0] = 5.0
    (x * x).sum().backward()
    assert_array_equal(await x.grad, [10, 4, 6])


async def test_assigning_to_a_part_of_a_result_is_recorded(s):
    x, v = await leaf(s, [1.0, 2.0, 3.0]), await leaf(s, 7.0)
    y = x * x
    before = y.detach()
    y[1:] = v
    (y * y).sum().backward()
    assert_array_equal(await x.grad, [4, 0, 0])
    assert_array_equal(await v.grad, 28)
    assert_array_equal(await before, [1, 4, 9])
    plain = await s.put(np.zeros(3))
    plain[0] = v
    assert plain.requires_grad
    with asc.no_grad():
        plain[1] = 1.0
    assert not plain.requires_grad


@pytest.mark.parametrize("dtype", ["i8", "?", "f4"])
async def test_an_assigned_value_may_have_another_dtype(s, dtype):
    x, v = await leaf(s, [1.0, 2.0, 3.0, 4.0]), await s.put(np.ones(2, dtype))
    for key in (slice(2), await s.put(np.array([0, 1])), await s.put(np.array([True, True, False, False]))):
        y, x.grad = x * x, None
        y[key] = v
        y.sum().backward()
        assert_array_equal(await x.grad, [0, 0, 6, 8])


# -- what is kept ---------------------------------------------------------------------------------------------------


async def test_only_what_the_derivatives_read_is_kept(s):
    """Of x @ w only x for the gradient of w; of relu its result, and not what it was made of."""
    x, w = await s.put(np.ones((8, 100))), await leaf(s, np.ones((100, 50)))
    before = retained(s)
    product = x @ w
    loss = (asc.maximum(product + 1.0, 0) * 3.0).sum()
    del product
    await s.barrier()
    assert retained(s) - before == 8 * 50 * 8 + loss.nbytes  # the result of maximum
    before, nbytes = retained(s), w.nbytes
    del w
    assert before - retained(s) == nbytes
    before = retained(s)
    del x
    assert retained(s) == before
    del loss
    assert retained(s) == 0


async def test_residuals_are_given_back_as_the_pass_goes_through(s):
    x = await leaf(s, np.ones(1000))
    y = x
    for _ in range(10):
        y = asc.sin(y)
    loss = y.sum()
    del y
    await s.barrier()
    assert retained(s) == 8000 * 10 + 8
    loss.backward()
    await s.barrier()
    assert retained(s) == 8000 * 2 + 8  # the leaf, its gradient and the loss


async def test_dropping_the_loss_drops_all(s):
    x = await leaf(s, np.ones(1000))
    loss = asc.exp(asc.sin(x)).sum()
    await s.barrier()
    assert retained(s) > x.nbytes
    del loss
    assert retained(s) == x.nbytes


async def test_long_chains_need_no_recursion(s):
    x = await leaf(s, np.ones(2))
    for backwards in (True, False):
        y = x
        for _ in range(20_000):
            y = y + 1
        if backwards:
            y.sum().backward()
        del y
    assert_array_equal(await x.grad, [1, 1])


async def test_between_devices():
    async with asc.Scheduler([CPUDevice("cpu"), CPUDevice("other")]) as s:
        x = await leaf(s, [1.0, 2.0])
        y = (x * 3).to("other")
        assert y.requires_grad
        (y * y).sum().backward()
        assert x.grad.device is x.device
        assert_array_equal(await x.grad, [18, 36])
