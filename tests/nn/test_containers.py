"""Containers, buffers, and what is done with a whole module: children, apply, to."""

from __future__ import annotations

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn

pytestmark = pytest.mark.one_loop


class Net(nn.Module):
    """A list and a dict of modules, and buffers."""

    def __init__(self) -> None:
        self.steps = nn.ModuleList([nn.Linear(2, 2, rng=0), nn.Linear(2, 2, rng=1)])
        self.heads = nn.ModuleDict({"one": nn.Linear(2, 1, rng=2), "two": nn.Identity(5, kind="any")})
        self.register_buffer("scale", asc.full((2,), 3.0, dtype=np.float32))
        self.register_buffer("cache", asc.ones(2, dtype=np.float32), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: asc.Tensor) -> asc.Tensor:
        for step in self.steps:
            x = step(x)
        return self.heads["one"](self.heads["two"](x)) * self.scale * self.cache


SAVED = ["heads.one.bias", "heads.one.weight", "scale", "steps.0.bias", "steps.0.weight", "steps.1.bias"]
SAVED += ["steps.1.weight"]


async def test_names_and_states(s):
    net = Net()
    assert sorted(net.state_dict()) == SAVED
    assert [name for name, _ in net.named_buffers()] == ["scale", "cache"]
    assert [buffer is one for buffer, one in zip(net.buffers(), (net.scale, net.cache), strict=True)] == [True, True]
    assert [name for name, _ in net.named_children()] == ["steps", "heads"]
    assert list(net.children()) == [net.steps, net.heads]
    other = Net()
    other.load_state_dict(net.state_dict())
    assert net(asc.ones((3, 2), dtype=np.float32)).shape == (3, 2)


async def test_apply_goes_from_the_leaves_to_the_root_and_training_reaches_all(s):
    net, seen = Net(), []
    assert net.apply(seen.append) is net
    assert seen == [*net.steps, net.steps, *net.heads.values(), net.heads, net]
    assert not any(module.training for module in net.eval().modules())


class Loud(nn.ReLU):
    """Not the one that is known."""


async def order(s, net, x):
    """The operations of a network, as they are issued."""
    found = []

    class Sees(asc.observe.Instrument):
        def task_submitted(self, task):
            found.append(task.name)

        def op_ran_inline(self, op):
            found.append(op.name)

    s.add_instrument(sees := Sees())
    await net(x)
    s.remove_instrument(sees)
    return found


async def test_pools_come_before_relu_where_nobody_sees_it(s):
    relu, pool, last = nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    assert list(nn.Sequential(relu, pool, last)) == [relu, pool, last]  # as they were given
    x = await s.put(np.ones((1, 1, 8, 8), np.float32))
    assert await order(s, nn.Sequential(relu, pool, relu, pool, last), x) == ["max_pool2d", "relu"] * 2 + ["reshape"]
    patched = nn.ReLU()
    patched.forward = lambda x: x  # type: ignore[method-assign]
    assert await order(s, nn.Sequential(pool, relu), x) == ["max_pool2d", "relu"]
    for modules, expected in (
        ([Loud(), pool], ["relu", "max_pool2d"]),
        ([patched, pool], ["max_pool2d"]),
        ([relu, nn.MaxPool2d(3, 1, 1)], ["relu", "max_pool2d"]),
        ([relu, last], ["relu", "reshape"]),
        ([], []),
    ):
        assert await order(s, nn.Sequential(*modules), x) == expected


@pytest.mark.parametrize("dtype", ["f4", "f8"])
async def test_pools_before_relu_give_the_same_bits(s, dtype):
    values = np.random.default_rng(0).choice([0, -0.0, -1, -2, 1, 2, np.nan, np.inf, -np.inf], (3, 4, 9, 10))
    found = []
    for forward in (nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), lambda x: nn.max_pool2d(nn.relu(x), 2)):
        x = await s.put(values.astype(dtype))
        x.requires_grad = True
        y = forward(x)
        (y * y).sum().backward()
        found.append(((await y).tobytes(), (await asc.abs(x.grad)).tobytes()))
    assert found[0] == found[1]


async def test_a_list_of_modules(s):
    a, b, c, d = [nn.Linear(2, 2) for _ in range(4)]
    modules = nn.ModuleList([a])
    assert modules.append(c).extend([d]) is modules
    modules.insert(1, b)
    assert list(modules) == [a, b, c, d]
    assert (len(modules), modules[-1], list(modules[1:3])) == (4, d, [b, c])
    assert isinstance(modules[1:3], nn.ModuleList)
    modules[0] = d
    assert next(iter(modules)) is d
    assert [name for name, _ in modules.named_children()] == ["0", "1", "2"]  # d is there twice
    assert isinstance(nn.Sequential(a, b, c)[:2], nn.Sequential)
    with pytest.raises(NotImplementedError, match="ModuleList does not define forward"):
        modules(1)
    with pytest.raises(TypeError, match="ModuleList: .* is no module"):
        modules.append(nn.ReLU)
    assert len(modules) == 4


async def test_a_dict_of_modules(s):
    modules = nn.ModuleDict([("a", nn.ReLU())])
    modules["b"] = nn.GELU()
    assert (list(modules), len(modules), "b" in modules, "c" in modules) == (["a", "b"], 2, True, False)
    assert [type(one) for one in modules.values()] == [nn.ReLU, nn.GELU]
    assert dict(modules.items()).keys() == modules.keys()
    assert isinstance(modules.pop("a"), nn.ReLU)
    del modules["b"]
    assert len(modules) == 0
    for wrong in ("keys", "x.y", "_x", "", 3):
        with pytest.raises(KeyError, match="cannot name a module"):
            modules[wrong] = nn.ReLU()
    with pytest.raises(TypeError, match="is no module"):
        modules["a"] = 3


async def test_buffers_that_make_no_sense_are_refused(s):
    net, tracked = Net(), asc.ones(2)
    tracked.requires_grad = True
    for name in ("", "a.b", "_a", "scale", "forward", 3):
        with pytest.raises(KeyError, match="register_buffer"):
            net.register_buffer(name, asc.ones(2))
    for wrong in (np.ones(2), tracked):
        with pytest.raises(TypeError, match="must be a tensor without requires_grad, or None"):
            net.register_buffer("other", wrong)
    assert sorted(net.state_dict()) == SAVED


async def test_to_brings_parameters_buffers_and_gradients_over():
    async with asc.Scheduler(["cpu", "cpu"]) as s:
        first, second = s.devices
        net, x = Net(), asc.ones((3, 2), dtype=np.float32)
        net(x).sum().backward()
        before, weight = await net(x), net.steps[0].weight
        gradient = await weight.grad
        assert net.to("cpu:1") is net
        assert net.steps[0].weight is weight
        assert {tensor.device for tensor in (*net.parameters(), *net.buffers())} == {second}
        assert weight.grad.device is second
        np.testing.assert_array_equal(await weight.grad, gradient)
        np.testing.assert_array_equal(await net(x.to(second)), before)
        net(x.to(second)).sum().backward()
        np.testing.assert_array_equal(await weight.grad, 2 * gradient)
        asc.optim.SGD(net.parameters(), lr=0.1, momentum=0.9).step()
        await s.barrier()
        assert weight.device is second
        submitted = s.statistics().tasks_submitted
        assert net.to(second) is net
        assert s.statistics().tasks_submitted == submitted  # nothing is copied
        with pytest.raises(ValueError, match="cpu:7"):
            net.to("cpu:7")
        net.to(first)
        assert weight.device is first
