"""Optimisers against PyTorch's, and what a step promises."""

from __future__ import annotations

import pydoc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import asyncsched as asc
from asyncsched.ops import TABLE, resolve
from asyncsched.optim import SGD, Adam, AdamW, RMSprop
from tests.autograd.gate import Gate
from tests.optimisers import BATCHES, FORMS, changed, draws, loss_of, parameters
from tests.waiting import no_collector

pytestmark = pytest.mark.one_loop


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
    assert (await q).tolist() == [1, 1]
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
        submitted = s.statistics().tasks_submitted
        with pytest.raises(asc.QueueFull, match=r"step\(\) takes 19 tasks .* room for"):
            optimizer.step()
        assert optimizer.state == [{}] * 6
        assert s.statistics().tasks_submitted == submitted
        gate.open()
        assert [(await p).tolist() for p in ps] == [[float(i)] * 3 for i in range(6)]
        for p in ps:
            p.grad = None
        ps[0].sum().backward()
        optimizer.step()
        assert optimizer.state[0].keys() == {"momentum"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SGD([]), "no parameters"),
        (lambda p: SGD(p, nesterov=True), "nesterov needs momentum"),
        (lambda p: AdamW(p, betas=(0.9, 1.0)), "betas must be below 1"),
        (lambda p: AdamW(p, betas=0.9), "betas must be two numbers"),
        (lambda p: AdamW(p, betas=(0.9, "x")), r"betas\[1\] must be a number, not str"),
        (lambda p: SGD(p, momentum=0.9, nesterov="no"), "nesterov must be True or False"),
        (lambda p: SGD([p[0] * 2]), "parameter 0 must be a tensor whose requires_grad"),
        (lambda p: SGD([p[0].detach()]), "parameter 0 must be a tensor whose requires_grad"),
    ],
)
async def test_what_makes_no_sense_is_refused(s, make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(await parameters(s, np.ones(3)))


NUMBERS = [(SGD, name) for name in ("lr", "momentum", "weight_decay")]
NUMBERS += [(kind, name) for kind in (Adam, AdamW) for name in ("lr", "eps", "weight_decay")]
NUMBERS += [(RMSprop, name) for name in ("lr", "alpha", "eps", "weight_decay", "momentum")]


@pytest.mark.parametrize("wrong", [-0.1, np.nan, np.inf, "0.1", None, True, np.float32(-1)], ids=str)
@pytest.mark.parametrize(("kind", "name"), NUMBERS)
async def test_a_number_that_makes_no_sense_is_refused_wherever_it_is_set(s, kind, name, wrong):
    ps = await parameters(s, np.ones(3))
    with pytest.raises((ValueError, TypeError), match=f"{name} must be a"):
        kind(ps, **{name: wrong})
    optimizer = kind(ps, lr=0.5)
    before = optimizer.state_dict()
    with pytest.raises((ValueError, TypeError), match=f"{name} must be a"):
        setattr(optimizer, name, wrong)
    with pytest.raises((ValueError, TypeError), match=f"{name} must be a"):
        optimizer.load_state_dict(changed(before, **{"lr": 0.25, name: wrong}))
    assert optimizer.state_dict() == before


async def test_settings_may_be_set_at_any_time_and_are_documented(s):
    (p,) = await parameters(s, np.ones(3))
    optimizer = SGD([p], lr=1)
    optimizer.lr, optimizer.momentum, optimizer.nesterov = np.float32(0.5), 0.5, True
    assert (optimizer.lr, optimizer.momentum, optimizer.nesterov) == (0.5, 0.5, True)
    with pytest.raises(ValueError, match="nesterov to False first"):
        optimizer.momentum = 0
    p.sum().backward()
    optimizer.step()
    assert_array_equal(await p, [0.25, 0.25, 0.25])
    for kind, names in ((SGD, "lr momentum weight_decay nesterov"), (AdamW, "lr betas eps weight_decay")):
        text = pydoc.render_doc(kind, renderer=pydoc.plaintext).partition("Data descriptors")[2]
        for name in names.split():
            assert f"{name}\n" in text


async def test_repr(s):
    assert repr(AdamW(await parameters(s, np.ones(3)), lr=0.5)) == "AdamW(1 parameters, lr=0.5)"


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_added_in_blocks_has_the_bits_of_the_formula(dtype: str) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 700, 900)).astype(dtype)
    kernel = resolve(TABLE["axpby"], np)
    for left in (x, np.zeros((), dtype)):
        for a in (1.0, 0.9):
            wanted = left * a + y * -0.1
            assert kernel(left, y, a, -0.1).tobytes() == wanted.tobytes()
            assert kernel(np.transpose(left), y.T, a, -0.1).tolist() == wanted.T.tolist()
    over = x.copy()
    assert kernel(over, y, 0.9, -0.1, out=over) is over
    assert over.tobytes() == (x * 0.9 + y * -0.1).tobytes()


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, RMSprop])
async def test_one_that_is_dropped_frees_its_moments_and_parameters_at_once(s: asc.Scheduler, kind: type) -> None:
    with no_collector():
        moved = await parameters(s, *draws())
        optimizer = kind(moved, lr=0.1)
        asc.sum(moved[0] * moved[0]).backward()
        optimizer.step()
        await s.barrier()
        moved.clear()
        del optimizer
        assert s.statistics().bytes_retained == 0


async def test_a_parameter_that_is_frozen_stays_and_moves_again_later(s):
    model = asc.nn.Sequential(asc.nn.Linear(3, 4, rng=0), asc.nn.Linear(4, 2, rng=1))
    optimizer = Adam(model.parameters(), lr=0.1)
    frozen, x = list(model[0].parameters()), asc.ones((2, 3), dtype=np.float32)
    before = await model[0].weight.numpy()
    for wanted in (True, False, False, True):
        kept = await model[0].weight.numpy()
        for p in frozen:
            p.requires_grad = wanted
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert np.array_equal(await model[0].weight.numpy(), kept) == (not wanted)
    assert not np.array_equal(await model[0].weight.numpy(), before)
    assert all(p.grad is None for p in optimizer.parameters)


async def test_a_schedule_of_no_optimizer_is_refused(s):
    layer = asc.nn.Linear(2, 2, rng=0)
    for wrong in (layer, layer.parameters()):
        with pytest.raises(TypeError, match=r"takes an optimizer, as `optim.SGD\(model.parameters\(\)\)` makes one"):
            asc.optim.schedules.StepLR(wrong, 3)
