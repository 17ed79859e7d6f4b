"""Passes back along the tape: their sums, their tasks, and what they refuse."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import asyncsched as asc
from asyncsched import nn
from asyncsched.autograd import grad, gradcheck
from asyncsched.autograd import rules as rules_module
from asyncsched.devices.sim import SimDevice
from asyncsched.optim import SGD, AdamW

from ..waiting import held
from .gate import Gate
from .test_tape import leaf, retained

pytestmark = pytest.mark.one_loop

# -- sums -----------------------------------------------------------------------------------------------------------


async def test_gradients_add_up_over_uses_and_passes(s):
    x = await leaf(s, [1.0, 2.0])
    y = x * x
    (y * x + y).sum().backward()  # 3 x**2 + 2 x
    assert_array_equal(await x.grad, [5, 16])
    (x * 10).sum().backward()
    assert_array_equal(await x.grad, [15, 26])


async def test_each_gradient_has_a_handle_of_its_own(s):
    x, y = await leaf(s, [1.0, 2.0]), await leaf(s, [3.0, 4.0])
    start = await s.put(np.ones(2))
    (x + y).backward(start)
    x.grad[0] = 5.0
    assert_array_equal(await x.grad, [5, 1])
    assert_array_equal(await y.grad, [1, 1])
    assert_array_equal(await start, [1, 1])
    first, second = grad(x + y, [x, y], [start])
    first[0] = 5.0
    assert_array_equal(await second, [1, 1])


async def test_gradients_have_the_dtype_of_their_tensors(s):
    x, y = await leaf(s, np.ones((2, 3), "f4")), await leaf(s, np.ones(3))
    (x * y).sum().backward()
    assert (x.grad.dtype, x.grad.shape) == (np.float32, (2, 3))
    assert (y.grad.dtype, y.grad.shape) == (np.float64, (3,))
    half = await leaf(s, np.ones(3, "f2"))
    (half.astype("f8") * 2).sum().backward()
    assert half.grad.dtype == np.float16


@pytest.mark.parametrize("turned", [False, True])
async def test_the_gradient_of_an_assignment_goes_to_the_write_that_stayed(s, turned):
    """Several writes go to each place. NumPy goes across a transposed view of an index array."""
    index = np.array([[0, -1, 0, -1], [1, 0, 0, 0]])
    places = asc.permute_dims(await s.put(index.T.copy()), (1, 0)) if turned else await s.put(index)
    values = await leaf(s, np.array([1.0, 2.0, 3.0, 4.0]))
    y = await s.put(np.zeros(2))
    y[places] = values
    assert (await y).tolist() == [4.0, 1.0]
    y.backward(await s.put(np.array([10.0, 20.0])))
    assert (await values.grad).tolist() == [20.0, 0.0, 0.0, 10.0]


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4"])
async def test_powers_of_narrow_and_wide_numbers_have_gradients_of_the_wide_ones(s, dtype):
    base, exponent = np.array([2, 7, 100], dtype), np.array([0.3, 1.25, 2.7])
    power = await leaf(s, exponent)
    (await s.put(base) ** power).sum().backward()
    expected = base.astype("f8") ** exponent * np.log(base.astype("f8"))
    np.testing.assert_allclose(await power.grad, expected, rtol=1e-13)
    narrow = np.array([0.3, 1.25, 2.7]).astype("f2" if dtype == "u1" else dtype)
    numbers = await leaf(s, base.astype("f8"))
    (numbers ** await s.put(narrow)).sum().backward()
    expected = narrow.astype("f8") * base.astype("f8") ** (narrow.astype("f8") - 1)
    np.testing.assert_allclose(await numbers.grad, expected, rtol=1e-13)


async def test_a_gradient_to_begin_with(s):
    x = await leaf(s, [1.0, 2.0])
    with pytest.raises(ValueError, match="reduce the tensor to a number"):
        (x * 2).backward()
    (x * 2).backward(await s.put(np.array([3.0, 4.0])))
    assert_array_equal(await x.grad, [6, 8])
    with pytest.raises(ValueError, match="must be like its tensor"):
        (x * 2).backward(await s.put(np.ones(3)))
    x.grad = None
    x.sum().reshape(1, 1).backward()
    assert_array_equal(await x.grad, [1, 1])
    number = await leaf(s, 4.0)
    number.backward()
    assert_array_equal(await number.grad, 1)


async def test_ties_share_the_gradient(s):
    x, y = await leaf(s, [-1.0, 0.0, 2.0]), await leaf(s, [-1.0, 0.0, 3.0])
    asc.maximum(x, 0).sum().backward()
    assert_array_equal(await x.grad, [0, 0.5, 1])
    x.grad = None
    asc.maximum(x, y).sum().backward()
    assert_array_equal(await x.grad, [0.5, 0.5, 0])
    assert_array_equal(await y.grad, [0.5, 0.5, 1])
    z = await leaf(s, [2.0, 5.0, 5.0])
    asc.max(z).backward()
    assert_array_equal(await z.grad, [0, 0.5, 0.5])


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[1, 2], [2, 4]], [[4, -2], [-2, 1]]),
        ([[0]], [[1]]),
        ([[0, 0], [0, 0]], [[0, 0], [0, 0]]),
        ([[1, 2, 3], [2, 4, 6], [0, 1, 1]], [[-2, -2, 2], [1, 1, -1], [0, 0, 0]]),
        ([[[1, 2], [2, 4]], [[2, 0], [0, 3]]], [[[4, -2], [-2, 1]], [[3, 0], [0, 2]]]),
        ([[1, 1j], [1j, -1]], [[-1, 1j], [1j, 1]]),
    ],
)
async def test_a_determinant_has_a_gradient_where_it_is_0(s, matrix, expected):
    for dtype in ("f8", "f4") if np.isrealobj(matrix) else ("c16",):
        x = await leaf(s, np.array(matrix).real.astype("f8" if dtype == "c16" else dtype))
        y = x + asc.asarray(1j) * await s.put(np.imag(matrix).astype("f8")) if dtype == "c16" else x
        asc.real(asc.linalg.det(y)).sum().backward()
        assert_allclose(await x.grad, np.real(expected), atol=1e-5)


async def test_at_a_limit_the_element_has_the_gradient(s):
    for low, high, expected in ((0, None, [0, 1, 1]), (None, 0, [1, 1, 0]), (0, 1, [0, 1, 1]), (-1, 0, [1, 1, 0])):
        x = await leaf(s, [-1.0, 0.0, 1.0])
        limits = [await leaf(s, [float(limit)] * 3) for limit in (low, high) if limit is not None]
        asc.clip(x, low, high).sum().backward()
        assert_array_equal(await x.grad, expected)
        x.grad, given = None, iter(limits)
        asc.clip(x, *[None if limit is None else next(given) for limit in (low, high)]).sum().backward()
        assert_array_equal(await x.grad, expected)
        assert_array_equal(sum([await limit.grad for limit in limits]), 1 - np.array(expected))


async def test_overwritten_elements_have_no_gradient(s):
    places = await s.put(np.array([1, 1, 2]))
    for key in (places, [1, 1, 2]):
        v = await leaf(s, [5.0, 6.0, 7.0])
        y = asc.zeros(4)
        y[key] = v
        (y * asc.arange(4)).sum().backward()
        assert_array_equal(await y, [0, 6, 7, 0])
        assert_array_equal(await v.grad, [0, 1, 2])
    number, y = await leaf(s, 3.0), asc.ones(4)
    y[places] += number
    y.sum().backward()
    assert_array_equal(await y, [1, 4, 4, 1])
    assert_array_equal(await number.grad, 2)


async def test_layouts_do_not_say_which_write_is_the_last(s):
    """NumPy writes to F-ordered places in their order in memory."""
    rng = np.random.default_rng(0)
    for turned in (False, True):
        places, numbers = rng.integers(0, 4, (5, 6)), np.arange(30.0).reshape(5, 6)
        if turned:
            places, numbers = np.asfortranarray(places), np.asfortranarray(numbers)
        v, y = await leaf(s, numbers), asc.zeros(4)
        y[await s.put(places)] = v
        y.sum().backward()
        last = [max(numbers[places == i]) for i in range(4)]
        assert_array_equal(await y, last)
        assert_array_equal(await v.grad, np.isin(numbers, last))


# -- once, or again -------------------------------------------------------------------------------------------------


async def test_a_second_pass_needs_the_residuals_of_the_first(s):
    x = await leaf(s, [1.0, 2.0])
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert_array_equal(await x.grad, [4, 8])
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()
    assert_array_equal(await x.grad, [4, 8])


async def test_without_anything_tracked_there_is_no_way_back(s):
    x = await s.put(np.ones(2))
    with pytest.raises(ValueError, match="set `requires_grad`"):
        x.sum().backward()
    y = await leaf(s, np.ones(2))
    with pytest.raises(ValueError, match="input 0 is not tracked"):
        grad(y.sum(), [x])
    with pytest.raises(ValueError, match="input 1 is not tracked, or no output depends on it"):
        grad(y.sum(), [y, await leaf(s, np.ones(2))])
    with pytest.raises(ValueError, match="as many gradients"):
        grad(y.sum(), [y], [])
    with pytest.raises(ValueError, match="at least one output"):
        grad([], [y])


async def test_an_input_that_no_output_depends_on_is_none_if_allowed(s):
    x, y, constant = await leaf(s, [1.0, 2.0]), await leaf(s, [3.0, 4.0]), await s.put(np.ones(2))
    z = x * 2
    found = grad((z * z).sum(), [y, x, constant, z], allow_unused=True)
    assert found[0] is found[2] is None
    assert_array_equal(await found[1], [8, 16])
    assert_array_equal(await found[3], [4, 8])
    assert grad((x * 2).sum(), y, allow_unused=True) == [None]
    with pytest.raises(ValueError, match="input 1 .* `allow_unused=True` it is None"):
        grad((x * 2).sum(), [x, y])
    with pytest.raises(ValueError, match="this tensor was not recorded"):
        grad(constant.sum(), x, allow_unused=True)


@pytest.mark.parametrize("reduced", ["sum", "mean", "var", "std", "max", "nansum", "nanmean", "nanvar", "nanstd"])
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1, "keepdims": True}])
async def test_reductions_of_lengths_that_depend_on_data_have_gradients_before_these_are_known(s, reduced, options):
    def loss(x: asc.Tensor, selected: asc.Tensor) -> asc.Tensor:
        return (getattr(asc, reduced)((x * 2)[selected], **options) ** 2).sum()

    array, found = np.random.default_rng(0).uniform(1, 2, (5, 3)), []
    for indices in (slice(1, None), None):
        x = await leaf(s, array)
        held = s.submit_nowait(gate := Gate(5), shape=(5,), dtype="f8")
        loss(x, held + asc.arange(5) > 0 if indices is None else indices).backward()
        gate.open()
        found.append(await x.grad)
    assert_allclose(found[1], found[0])


async def test_a_gradient_that_needs_lengths_that_are_not_known_says_so(s):
    x = await leaf(s, [1.0, -2.0, 3.0])
    held = s.submit_nowait(gate := Gate(3), shape=(3,), dtype="f8")
    loss = asc.prod(x[held > 0])
    with pytest.raises(ValueError, match="prod: the gradient needs lengths that depend on data: `await`"):
        loss.backward()
    assert x.grad is None
    gate.open()


LATE = {
    "elementwise": lambda w, at: (w[at] * 2) ** 2,
    "views": lambda w, at: asc.flip(w[at]).reshape(1, -1)[0] * w[at],
    "a part": lambda w, at: w[at][:1] * 3,
    "padded": lambda w, at: asc.pad(w[at], 1, mode="edge") * 2,
    "broadcast": lambda w, at: w[at] * w[:1],
    "assigned": lambda w, at: assigned(w * 3, at, w[at] * 2),
}


def assigned(x, at, y):
    x[at] = y
    return x


@pytest.mark.parametrize("function", LATE.values(), ids=LATE)
async def test_once_a_length_is_there_it_makes_no_difference_that_it_came_late(s, gate, function):
    mask = s.submit_nowait(held, gate, np.array([True, False, True]), shape=(3,), dtype=bool)
    found = []
    for at in (mask, np.array([0, 2])):
        w = await leaf(s, [1.0, -2.0, 3.0])
        y = function(w, at if at is mask else await s.put(at))
        gate.set()
        await y
        y.sum().backward()
        found.append(await w.grad)
    assert_array_equal(*found)


async def test_higher_orders(s):
    x = await leaf(s, [1.0, 2.0, -3.0])
    y = x**4
    for factor, power in ((4, 3), (12, 2), (24, 1)):
        (y,) = grad(y.sum(), [x], create_graph=True)
        assert_array_equal(await y, factor * np.array([1.0, 2.0, -3.0]) ** power)
    assert x.grad is None


async def test_gradients_of_tensors_in_between(s):
    x, unused = await leaf(s, [1.0, 2.0]), await leaf(s, [1.0, 1.0])
    y = x * 3
    to_y, to_x = grad([(y * y).sum(), (y * unused).sum()], [y, x], retain_graph=True)
    assert_array_equal(await to_y, [7, 13])
    assert_array_equal(await to_x, [21, 39])
    assert unused.grad is None


async def test_nodes_that_a_gradient_does_not_pass_are_kept(s):
    """As in PyTorch: first the gradient of what lies between, then on from there."""
    x = await leaf(s, [1.0, 2.0])
    y = x * x
    z = (y * y).sum()
    (gradient,) = grad(z, y)
    with pytest.raises(RuntimeError, match="retain_graph"):
        z.backward()
    y.backward(gradient)
    assert_array_equal(await x.grad, [4, 32])


@pytest.mark.parametrize("gradient", [1.0, np.ones(2)])
async def test_a_gradient_is_a_tensor(s, gradient):
    x = await leaf(s, [1.0, 2.0])
    with pytest.raises(TypeError, match="a gradient is a Tensor or None, not"):
        (x * 2).backward(gradient)


@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")  # of NumPy, in the forward pass
async def test_a_spread_of_nothing_has_no_gradient_to_speak_of(s):
    """As in PyTorch: NaN where there are no degrees of freedom, 0 for a standard deviation of 0."""
    one, same = await leaf(s, [1.0]), await leaf(s, np.ones(4))
    asc.var(one, correction=1).backward()
    asc.std(same).backward()
    assert np.isnan(await one.grad).all()
    assert_array_equal(await same.grad, np.zeros(4))


@pytest.mark.parametrize(
    "fn",
    [
        asc.max, asc.min, asc.mean, lambda x: nn.mse_loss(x, x * 0.5),
        lambda x: nn.cross_entropy(x.reshape(-1, 1) * asc.arange(4, dtype="f2"), asc.zeros(70_000, dtype=int)),
        lambda x: nn.nll_loss(x.reshape(-1, 1), asc.zeros(70_000, dtype=int)),
        lambda x: nn.kl_div(x - 1, x * 0 + 1, reduction="batchmean"),
        lambda x: asc.max(asc.broadcast_to(x[:1], (70_000, 2)) * x.reshape(-1, 1), axis=1).mean(),
    ],
)  # fmt: skip
async def test_more_halves_than_half_precision_can_count_have_gradients(s, fn):
    found = []
    for dtype in ("f2", "f8"):
        x = await leaf(s, np.ones(70_000, dtype))
        y = fn(x).astype(dtype)
        (y * 1000).backward()
        found.append([await y, await x.grad])
        assert x.grad.dtype == dtype
    for half, double in zip(*found, strict=True):
        assert_allclose(half, double, rtol=5e-3)


@pytest.mark.parametrize(
    ("fn", "length"),
    [
        (asc.cumulative_sum, 6000),
        (asc.cumulative_prod, 6000),
        (lambda x: asc.einsum("ni,i->n", asc.ones((6000, 3), dtype=x.dtype), x), 3),
    ],
    ids=["cumulative_sum", "cumulative_prod", "einsum"],
)
async def test_gradients_in_half_precision_are_added_up_in_single(s, fn, length):
    """Half precision would stay at 2048, since 2048 + 1 rounds to 2048."""
    found = []
    for dtype in ("f2", "f8"):
        x = await leaf(s, np.ones(length, dtype))
        y = fn(x)
        y.backward(asc.ones(y.shape, dtype=dtype))
        found.append(await x.grad)
    assert_allclose(*found, rtol=1e-3)


async def test_a_mean_of_more_than_half_precision_can_count_has_a_gradient(s):
    x = await leaf(s, np.linspace(-1, 1, 100_000).astype("f2"))
    asc.mean(x).backward()
    assert_allclose(await x.grad, 1e-5, rtol=0.01)
    x.grad = None
    asc.var(x).backward()
    assert_allclose(await x.grad, await x.numpy() * 2e-5, rtol=0.01, atol=1e-7)


# -- tasks ----------------------------------------------------------------------------------------------------------


async def test_backward_waits_for_nothing_and_goes_before_pending_tasks():
    seen = []
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x = await leaf(s, np.ones(4))
        gate = Gate()
        loss = (x * s.submit_nowait(gate, shape=(), dtype="f8")).sum()
        s.submit_nowait(lambda: seen.append(x.grad.done()))
        loss.backward()
        assert not x.grad.done()
        gate.open()
        await s.barrier()
    assert seen == [True]


async def test_a_pass_is_issued_whole_or_not_at_all():
    async with asc.Scheduler("cpu", max_ops=1, max_pending=15) as s:
        x = await leaf(s, np.ones(1000))
        gate = Gate()
        y = x * s.submit_nowait(gate, shape=(), dtype="f8")
        for _ in range(10):
            y = asc.sin(y)
        loss = y.sum()
        with pytest.raises(asc.QueueFull, match="max_pending"):
            while True:
                s.submit_nowait(gate)
        submitted = s.statistics().tasks_submitted
        with pytest.raises(asc.QueueFull, match=r"backward\(\) takes \d+ tasks"):
            loss.backward()
        assert x.grad is None
        assert s.statistics().tasks_submitted == submitted
        gate.open()
        await s.barrier()
        with pytest.raises(asc.QueueFull, match="or raise max_pending"):
            loss.backward()  # more than 20 tasks, where there are 15 places
        assert x.grad is None


async def test_after_a_refusal_the_same_pass_goes_through():
    async with asc.Scheduler("cpu", max_ops=1, max_pending=10) as s:
        x = await leaf(s, np.ones(4))
        gate = Gate()
        loss = (x * s.submit_nowait(gate, shape=(), dtype="f8")).sum()
        with pytest.raises(asc.QueueFull):
            while True:
                s.submit_nowait(gate)
        with pytest.raises(asc.QueueFull):
            loss.backward()
        gate.open()
        await s.barrier()
        loss.backward()
        assert_array_equal(await x.grad, [0, 0, 0, 0])


async def test_a_pass_with_a_task_that_can_never_run_is_not_begun():
    """The product of all others takes two arrays of the operand's size to make a third."""
    async with asc.Scheduler("cpu", max_bytes=200_000) as s:
        x = await leaf(s, np.ones(10_000))
        loss = asc.prod(x)
        await s.barrier()
        before = retained(s)
        for _ in range(2):
            with pytest.raises(asc.TaskTooLarge):
                loss.backward()
            statistics = s.statistics()
            assert statistics.tasks_pending == statistics.tasks_in_flight == 0
            assert retained(s) == before
        assert x.grad is None


async def test_gradients_of_a_failed_result_fail_with_the_same_exception(s):
    def fail():
        raise KeyError("lost")

    x = await leaf(s, np.ones(3))
    loss = (x * s.submit_nowait(fail, shape=(3,), dtype="f8")).sum()
    loss.backward()
    with pytest.raises(KeyError, match="lost"):
        await x.grad
    with pytest.raises(KeyError, match="lost"):
        await loss


async def test_a_scope_waits_for_the_passes_issued_in_it(s):
    x = await leaf(s, np.ones(50_000))
    async with s.scope(name="step", reserve="2 MiB"):
        asc.exp(asc.sin(x)).sum().backward()
    assert x.grad.done()
    assert_allclose(await x.grad, np.exp(np.sin(1.0)) * np.cos(1.0) * np.ones(50_000))


async def test_other_threads_and_closed_schedulers_are_refused():
    async with asc.Scheduler("cpu") as s:
        loss = (await leaf(s, np.ones(3))).sum()
    with pytest.raises(asc.SchedulerClosed):
        loss.backward()


# -- training -------------------------------------------------------------------------------------------------------


def mlp(parameters, x, y):
    w1, b1, w2, b2 = parameters
    return ((asc.maximum(x @ w1 + b1, 0) @ w2 + b2 - y) ** 2).mean()


async def mlp_parameters(s, hidden=32):
    rng = np.random.default_rng(0)
    shapes = ((16, hidden), (hidden,), (hidden, 1), (1,))
    return [await leaf(s, rng.standard_normal(shape)) for shape in shapes]


async def test_a_thousand_steps_leave_memory_flat_without_the_garbage_collector():
    x, y = np.random.default_rng(1).standard_normal((2, 64, 16))
    seen = []
    async with asc.Scheduler("cpu", max_bytes="1 MiB") as s:
        parameters = await mlp_parameters(s)
        optimizer, window = AdamW(parameters), s.window(2)
        gc.collect()
        gc.disable()
        try:
            for i in range(1000):
                async with window:
                    loss = mlp(parameters, await s.put(x), await s.put(y[:, :1]))
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if i % 200 == 199:
                    await s.barrier()
                    seen.append((retained(s), len(gc.get_objects())))
        finally:
            gc.enable()
        nbytes, objects = zip(*seen, strict=True)
        assert set(nbytes) == {sum(p.nbytes for p in parameters) * 3 + loss.nbytes + 8}  # and the count of steps
        assert max(objects[1:]) - min(objects[1:]) < 100  # whatever else the process does


async def test_a_forward_pass_that_keeps_more_than_the_limit_names_the_holders():
    async with asc.Scheduler("cpu", max_bytes="1 MiB") as s:
        x = await leaf(s, np.ones(20_000))
        y = x
        for _ in range(20):
            y = asc.sin(y)
        with pytest.raises(asc.MemoryDeadlockError, match="variable 'y'"):
            await y


async def test_tracked_bytes_stay_within_the_limit_however_many_steps_are_ahead():
    x, y = np.random.default_rng(1).standard_normal((2, 512, 16))
    async with asc.Scheduler("cpu", max_bytes="3 MiB") as s:
        parameters = await mlp_parameters(s, hidden=128)
        optimizer, window = SGD(parameters, lr=1e-3), s.window(2)
        losses = []
        for _ in range(30):
            async with window:
                loss = mlp(parameters, await s.put(x), await s.put(y[:, :1]))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss)
        values = await asc.gather(*losses)
        assert values[-1] < values[0]
        statistics = s.statistics()
        assert 512 * 128 * 8 < statistics.peak_bytes <= statistics.max_bytes == 3 * 2**20


@pytest.mark.parametrize("seed", range(10))
async def test_the_same_on_streams_of_any_order(seed):
    x, y = np.random.default_rng(1).standard_normal((2, 8, 16))

    async def train(**options):
        async with asc.Scheduler(**options) as s:
            parameters = await mlp_parameters(s)
            optimizer = SGD(parameters, lr=0.01, momentum=0.9)
            for _ in range(3):
                mlp(parameters, await s.put(x), await s.put(y[:, :1])).backward()
                optimizer.step()
                optimizer.zero_grad()
            return await asc.gather(*parameters)

    expected = await train(device="cpu")
    for got, wanted in zip(await train(device=SimDevice(seed=seed, streams=3), max_ops=5), expected, strict=True):
        assert_array_equal(got, wanted)


# -- gradcheck ------------------------------------------------------------------------------------------------------


async def test_gradcheck_finds_a_wrong_rule_and_names_the_worst_element(monkeypatch):
    monkeypatch.setitem(rules_module.RULES, "sin", (lambda g, x: g * asc.cos(x) * (x < 2),))
    async with asc.Scheduler("cpu"):
        await gradcheck(asc.sin, np.array([[0.5, 1.0]]))
        with pytest.raises(AssertionError, match=r"input 1, element \(0, 1\): the gradient is -?0, the central diff"):
            await gradcheck(lambda x, y: x * asc.sin(y), np.ones((1, 2)), np.array([[1.0, 3.0]]))
    monkeypatch.setitem(rules_module.RULES, "sin", (lambda g, x: g * np.nan,))
    async with asc.Scheduler("cpu"):
        with pytest.raises(AssertionError, match="the gradient is nan"):
            await gradcheck(asc.sin, np.ones(2))


async def test_gradcheck_takes_doubles_alone(s):
    with pytest.raises(TypeError, match="input 1 must be an ndarray of float64"):
        await gradcheck(asc.add, np.ones(2), np.ones(2, "f4"))
