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
from tests.waiting import no_collector

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
    (Adam, {"lr": 0.05}),
    (Adam, {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    (RMSprop, {}),
    (RMSprop, {"lr": 0.05, "alpha": 0.9, "eps": 1e-6, "weight_decay": 0.1}),
    (RMSprop, {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.1}),
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


async def moved(s: asc.Scheduler, kind: type, **options: object) -> asc.optim.Optimizer:
    """After a step, and with a parameter that has none."""
    p, q = await parameters(s, np.ones(3), np.ones(2))
    optimizer = kind([p, q], **options)
    p.sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("kind", "options"), FORMS)
async def test_loading_restores_every_setting(s, kind, options, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    before, after = await moved(s, kind, **options), await moved(s, kind, lr=9.0)
    await asc.save(tmp_path / "state", before.state_dict())
    after.load_state_dict(await asc.load(tmp_path / "state"))  # where tuples have become lists
    for name, value in {**options, "lr": before.lr}.items():
        assert getattr(after, name) == value
    assert after.state_dict().keys() == before.state_dict().keys()
    assert [state.keys() for state in after.state] == [state.keys() for state in before.state]


async def test_another_optimisers_state_is_refused(s):
    plain, averaged, adam = await moved(s, SGD), await moved(s, SGD, momentum=0.9), await moved(s, AdamW)
    for mine, other in ((plain, adam), (averaged, adam), (adam, plain), (adam, averaged)):
        before = mine.state_dict()
        with pytest.raises(ValueError, match="does not fit: missing .* is it another optimiser's"):
            mine.load_state_dict(other.state_dict())
        mixed = {**before, "state": other.state_dict()["state"]}
        if other is not plain:  # which keeps nothing
            with pytest.raises(ValueError, match="the state of parameter 0 does not fit"):
                mine.load_state_dict(mixed)
        assert mine.state_dict().keys() == before.keys()
    plain.load_state_dict(averaged.state_dict())
    assert plain.momentum == 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: 3, "a state is a dict"),
        (lambda state: {"lr": 0.1, "state": state["state"]}, r"missing \['param_groups'\], unexpected \['lr'\]"),
        (lambda state: state | {"param_groups": [{"lr": 0.1, "params": [0, 1]}]}, "missing .'betas', 'eps', 'weight_d"),
        (
            lambda state: state | {"param_groups": state["param_groups"] * 2},
            "state of 2 groups of parameters, not of 1",
        ),
        (lambda state: state | {"param_groups": {}}, "param_groups must be a list"),
        (lambda state: state | {"param_groups": [3]}, "group 0 of the state of AdamW must be a dict, not int"),
        (lambda state: changed(state, params=[0]), "group 0 of the state of AdamW has 1 parameters, not 2"),
        (lambda state: state | {"state": {}}, "state must be a list"),
        (lambda state: state | {"state": []}, "state of 0 parameters, not of 2"),
        (lambda state: state | {"state": [{}, None]}, "the state of parameter 1 must be a dict"),
        (lambda state: without(state, "mean"), r"parameter 0 does not fit: missing \['mean'\], unexpected \[\]"),
        (lambda state: without(state, step=3), "step of parameter 0 must be a tensor, not int"),
        (lambda state: without(state, step=state["state"][0]["step"].astype("i4")), "step of parameter 0 is Tensor"),
        (lambda state: without(state, mean=np.ones(3)), "mean of parameter 0 must be a tensor, not ndarray"),
        (lambda state: without(state, mean=state["state"][0]["mean"][:2]), "mean of parameter 0 is Tensor"),
        (lambda state: without(state, mean=state["state"][0]["mean"].astype("f4")), "mean of parameter 0 is Tensor"),
    ],
)
async def test_a_damaged_state_is_refused_and_changes_nothing(s, change, message):
    optimizer = await moved(s, AdamW)
    before = optimizer.state_dict()
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.load_state_dict(change(changed(before, lr=0.5)))
    assert optimizer.lr == 1e-3
    assert [state.keys() for state in optimizer.state] == [state.keys() for state in before["state"]]
    optimizer.load_state_dict(before)


def changed(state: dict, **settings: object) -> dict:
    """A state whose only group has other settings."""
    return {**state, "param_groups": [state["param_groups"][0] | settings]}


def without(state: dict, *names: str, **changed: object) -> dict:
    """A state whose first parameter lacks something, or has something else."""
    first = {name: kept for name, kept in (state["state"][0] | changed).items() if name not in names}
    return {**state, "state": [first, *state["state"][1:]]}


async def test_a_state_of_another_scheduler_is_refused(s):
    optimizer = await moved(s, SGD, momentum=0.9)
    async with asc.Scheduler("cpu") as other:
        with pytest.raises(ValueError, match="device and scheduler"):
            optimizer.load_state_dict((await moved(other, SGD, momentum=0.9)).state_dict())


async def test_repr(s):
    assert repr(AdamW(await parameters(s, np.ones(3)), lr=0.5)) == "AdamW(1 parameters, lr=0.5)"


async def grouped(s: asc.Scheduler, kind: type = SGD, **options: object) -> asc.optim.Optimizer:
    first, second = await parameters(s, *draws())
    return kind([{"params": [first], "lr": 0.05}, {"params": second, "weight_decay": 0.1}], **options)


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, RMSprop])
async def test_groups_end_where_pytorch_ends(s, kind, tmp_path, blockbuster):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    blockbuster.deactivate()
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs = [torch.tensor(a, requires_grad=True) for a in draws()]
    optimizer = getattr(torch.optim, kind.__name__)(
        [{"params": theirs[:1], "lr": 0.05}, {"params": theirs[1], "weight_decay": 0.1}], lr=0.02
    )
    ours = await grouped(s, kind, lr=0.02)
    for i, (x, y) in enumerate(BATCHES[:10]):
        for one in (ours, optimizer):
            one.param_groups[1]["lr"] = 0.02 + 0.01 * i
            one.zero_grad()
        loss_of(*ours.parameters, await s.put(x), await s.put(y)).backward()
        loss_of(*theirs, torch.from_numpy(x), torch.from_numpy(y)).backward()
        ours.step()
        optimizer.step()
    for p, q in zip(ours.parameters, theirs, strict=True):
        assert_allclose(await p, q.detach().numpy(), rtol=1e-12, atol=1e-12)
    await asc.save(tmp_path / "state", ours.state_dict())
    other = await grouped(s, kind, lr=0.3)
    other.load_state_dict(await asc.load(tmp_path / "state"))
    assert [dict(group.settings) for group in other.param_groups] == [dict(g.settings) for g in ours.param_groups]
    assert [group["lr"] for group in other.param_groups] == [0.05, 0.02 + 0.01 * 9]


async def test_a_setting_of_the_optimiser_is_that_of_all_groups(s):
    optimizer = await grouped(s, lr=0.02)
    assert repr(optimizer) == "SGD(2 parameters, lr=0.05, 0.02)"
    with pytest.raises(ValueError, match=r"lr is \[0.05, 0.02\] in the groups: read `optimizer.param_groups"):
        _ = optimizer.lr
    optimizer.lr = 0.5
    assert (optimizer.lr, [group["lr"] for group in optimizer.param_groups]) == (0.5, [0.5, 0.5])
    first, second = optimizer.param_groups
    assert dict(first) == {"params": first.params, "lr": 0.5, "momentum": 0, "weight_decay": 0, "nesterov": False}
    assert (len(first), "lr" in first, "betas" in first, second["params"]) == (5, True, False, optimizer.parameters[1:])
    assert optimizer.param_groups.index(second) == 1
    assert first != second
    second["momentum"] = 0.9
    with pytest.raises(ValueError, match="nesterov needs momentum"):
        optimizer.nesterov = True
    assert [group["nesterov"] for group in optimizer.param_groups] == [False, False]
    for wrong in ("beta", "params"):
        with pytest.raises(KeyError, match="is no setting of this optimiser: those are lr, momentum"):
            second[wrong] = 1
    with pytest.raises(TypeError, match="always has all settings"):
        del second["lr"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p, q: SGD([{"lr": 0.1}]), "group 0 must be a dict with 'params'"),
        (lambda p, q: SGD([{"params": [p]}, q]), "group 1 must be a dict with 'params'"),
        (
            lambda p, q: SGD([{"params": [p], "betas": 3}]),
            r"group 0 has \['betas'\], and the settings are lr, momentum",
        ),
        (lambda p, q: SGD([{"params": [p], "lr": -1}]), "lr must be a"),
        (lambda p, q: SGD([{"params": [p]}, {"params": [q, p]}]), "a parameter is there twice"),
        (lambda p, q: SGD([p, p]), "a parameter is there twice"),
        (lambda p, q: SGD([{"params": []}]), "no parameters"),
    ],
)
async def test_groups_that_make_no_sense_are_refused(s, make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(*await parameters(s, *draws()))


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
