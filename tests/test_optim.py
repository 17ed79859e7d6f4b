"""Optimisers against PyTorch's, and what a step promises."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import asyncsched as asc
from asyncsched.optim import SGD, AdamW
from tests.autograd.gate import Gate

pytestmark = pytest.mark.one_loop
SHAPES = ((4, 4), (4,))
FORMS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    (AdamW, {"lr": 0.05}),
    (AdamW, {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
]


async def parameters(s: asc.Scheduler, *arrays: np.ndarray) -> list[asc.Tensor]:
    found = [await s.put(array) for array in arrays]
    for parameter in found:
        parameter.requires_grad = True
    return found


def draws() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in SHAPES]


BATCHES = [tuple(np.random.default_rng(i).standard_normal((2, 5, 4))) for i in range(50)]


def loss_of(w, b, x, y):
    """For tensors of either library."""
    return ((x @ w + b - y) ** 2).mean()


@pytest.mark.parametrize(("kind", "options"), FORMS)
async def test_fifty_steps_end_where_pytorch_ends(s, kind, options, trained_by_pytorch):
    ours = await parameters(s, *draws())
    optimizer = kind(ours, **options)
    for x, y in BATCHES:
        loss_of(*ours, await s.put(x), await s.put(y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for p, q in zip(ours, trained_by_pytorch, strict=True):
        assert_allclose(await p, q, rtol=1e-12, atol=1e-12)


@pytest.fixture
def trained_by_pytorch(kind, options):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # else they spin while they wait
    parameters = [torch.tensor(a, requires_grad=True) for a in draws()]
    optimizer = getattr(torch.optim, kind.__name__)(parameters, **options)
    for x, y in BATCHES:
        optimizer.zero_grad()
        loss_of(*parameters, torch.from_numpy(x), torch.from_numpy(y)).backward()
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


@pytest.mark.parametrize(("kind", "options"), FORMS)
async def test_a_saved_state_goes_on_as_if_never_interrupted(s, kind, options):
    x, y = await s.put(np.ones((5, 4))), await s.put(np.zeros((5, 4)))

    def train(ps, optimizer, steps):
        for _ in range(steps):
            loss_of(*ps, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()

    whole = await parameters(s, *draws())
    train(whole, kind(whole, **options), 6)
    first = await parameters(s, *draws())
    before = kind(first, **options)
    train(first, before, 3)
    saved, arrays = before.state_dict(), [await p.numpy() for p in first]
    train(first, before, 3)  # must not change what was saved
    second = await parameters(s, *arrays)
    after = kind(second, **{**options, "lr": 9.0})
    after.load_state_dict(saved)
    train(second, after, 3)
    for ps in (first, second):
        for p, q in zip(ps, whole, strict=True):
            assert_array_equal(await p, await q)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("kind", "options"), FORMS)
async def test_buffers_are_written_over_once_they_are_nobody_elses(s, kind, options, dtype):
    (p,) = await parameters(s, np.ones(100_000, dtype))
    optimizer = kind([p], **options)
    held = []
    for _ in range(4):
        (p * p).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        await s.barrier()
        held.append(s.statistics().bytes_retained)
    assert p.dtype == dtype
    kept = {"momentum", "mean", "square"} & optimizer.state[0].keys()
    count = 8 if "step" in optimizer.state[0] else 0
    assert held[1:] == [p.nbytes * (1 + len(kept)) + count] * 3


async def test_tasks_issued_before_a_step_see_what_was_before(s):
    (p,) = await parameters(s, np.ones(3))
    double = p.detach() * 2
    p.sum().backward()
    SGD([p], lr=0.5).step()
    assert_array_equal(await p, [0.5, 0.5, 0.5])
    assert_array_equal(await double, [2, 2, 2])
    assert p.requires_grad


async def test_what_has_no_gradient_stays(s):
    p, q = await parameters(s, np.ones(3), np.ones(2))
    optimizer = AdamW([p, q])
    with pytest.raises(RuntimeError, match="call `loss.backward\\(\\)`"):
        optimizer.step()
    p.sum().backward()
    optimizer.step()
    assert q._value.array.tolist() == [1, 1]
    assert optimizer.state[1] == {}
    assert await optimizer.state[0]["step"].item() == 1
    optimizer.zero_grad()
    assert p.grad is None


async def test_a_step_is_issued_whole_or_not_at_all():
    async with asc.Scheduler("cpu", max_pending=8) as s:
        ps = await parameters(s, *[np.full(3, float(i)) for i in range(6)])
        sum(p.sum() for p in ps).backward()
        await s.barrier()
        held = s.submit_nowait(gate := Gate(3), shape=(3,), dtype="f8")
        optimizer = SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1)
        for p in ps:
            p.grad = p.grad + held
        values, submitted = [p._value for p in ps], s.statistics().tasks_submitted
        with pytest.raises(asc.QueueFull, match=r"step\(\) takes 13 tasks .* room for"):
            optimizer.step()
        assert [p._value for p in ps] == values
        assert optimizer.state == [{}] * 6
        assert s.statistics().tasks_submitted == submitted
        gate.open()
        await s.barrier()
        for p in ps:
            p.grad = None
        ps[0].sum().backward()
        optimizer.step()
        assert optimizer.state[0].keys() == {"momentum"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SGD([]), "no parameters"),
        (lambda p: SGD(p, lr=-1.0), "lr must not be negative"),
        (lambda p: SGD(p, momentum=-0.1), "momentum must not be negative"),
        (lambda p: SGD(p, nesterov=True), "nesterov needs momentum"),
        (lambda p: AdamW(p, betas=(0.9, 1.0)), "betas must be"),
        (lambda p: AdamW(p, eps=-1.0), "eps must not be negative"),
        (lambda p: SGD([p[0] * 2]), "parameter 0 must be a tensor whose requires_grad"),
        (lambda p: SGD([p[0].detach()]), "parameter 0 must be a tensor whose requires_grad"),
        (lambda p: SGD(p).load_state_dict({"lr": 1, "state": []}), "state of 0 parameters, not of 1"),
        (lambda p: SGD(p).load_state_dict({"lr": 1, "state": [{"momentum": p[0][0]}]}), "momentum of parameter 0"),
    ],
)
async def test_what_makes_no_sense_is_refused(s, make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(await parameters(s, np.ones(3)))


async def test_repr(s):
    assert repr(AdamW(await parameters(s, np.ones(3)), lr=0.5)) == "AdamW(1 parameters, lr=0.5)"
