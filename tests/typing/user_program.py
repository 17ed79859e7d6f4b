"""A user's program, for type checkers: nobody runs it. What must be an error says so, with the code, in its line."""

# ruff: noqa: B018, RUF005  # what is added here and not used is there for its type

from typing import Any, assert_type

import numpy as np

import asyncsched as asc
from asyncsched import nn, optim

Array = np.ndarray[Any, Any]


def parse(text: str) -> int:
    return int(text)


async def awaited(s: asc.Scheduler) -> None:
    x = await s.put([1.0, 2.0])
    assert_type(x, asc.Tensor)
    assert_type(await x, Array)
    assert_type(await x.numpy(), Array)
    assert_type(x.result(), Array)
    total: float = await x.sum().item()
    turned: complex = await x.sum().item()
    print(f"{total:.3f}", turned, total > 1)
    assert_type(await asc.gather(x, x + 1), list[Array])
    for array in await asc.gather(x, x, x):
        assert_type(array, Array)


async def timed(s: asc.Scheduler, x: asc.Tensor) -> None:
    async with asc.Timer("a product", scheduler=s) as t:
        x @ x
    assert_type(t.seconds, float)
    found = await asc.measure(lambda: x @ x, 3)
    assert_type(found.finish.median, float)
    assert_type(found.issue.quartiles, tuple[float, float])


async def computed(x: asc.Tensor) -> None:
    assert_type(x @ x + 1, asc.Tensor)
    assert_type(2 * x**2 - x / 3, asc.Tensor)
    assert_type(np.float32(2) * x, asc.Tensor)
    assert_type(-x, asc.Tensor)
    assert_type(x < 1, asc.Tensor)
    assert_type(x[0], asc.Tensor)
    assert_type(x.sum(axis=0), asc.Tensor)
    assert_type(asc.exp(asc.sum(x)), asc.Tensor)
    assert_type(list(x), list[asc.Tensor])
    assert_type(len(x), int)
    assert_type(x.T, asc.Tensor)
    assert_type(x.grad, asc.Tensor | None)


async def submitted(s: asc.Scheduler, x: asc.Tensor) -> None:
    task = await s.submit(parse, "1")
    assert_type(task, asc.Task[int])
    assert_type(await task, int)
    assert_type(task.result(), int)
    assert_type(s.submit_nowait(parse, "1"), asc.Task[int])
    assert_type(await s.submit(np.sort, x, shape=(3,), dtype=float), asc.Tensor)
    assert_type(s.submit_nowait(np.sort, x, shape=3, dtype="f4"), asc.Tensor)
    assert_type(await s.call(parse, "1"), int)
    assert_type(await asc.gather(task, task), list[int])
    number, array = await asc.gather(task, x)
    assert_type(number, int)
    assert_type(array, Array)
    assert_type(await asc.gather(x.item(), x.item()), list[bool | int | float])
    assert_type(await asc.gather(*[x.numpy() for _ in range(2)]), list[Array])
    value, array = await asc.gather(x.item(), x)
    assert_type(value, bool | int | float)
    assert_type(array, Array)
    async with s.scope(name="request", reserve="1 MiB") as scope:
        assert_type(scope, asc.Scope)
        assert_type(await scope.put(1.0), asc.Tensor)
    async with s.window(2):
        pass


async def on_a_cluster() -> None:
    async with asc.Scheduler(asc.cluster.DaskDevice("tcp://scheduler:8786", workers=4)) as s:
        assert_type(s, asc.Scheduler)


async def read(s: asc.Scheduler, texts: list[str]) -> None:
    numbers: asc.Pipeline[int] = s.pipeline(texts).map(parse, workers=2)
    async with numbers.open() as items:
        async for item in items:
            assert_type(item, int)
    assert_type(numbers.batch(2, collate=sum), asc.Pipeline[int])
    assert_type(numbers.map(fetch), asc.Pipeline[bytes])
    assert_type(numbers.filter(bool).shuffle(100, seed=0).repeat(2), asc.Pipeline[int])
    assert_type(s.pipeline(texts, order=lambda epoch: [1, 0]).shard(0, 2), asc.Pipeline[str])
    assert_type(s.pipeline(texts, order=np.arange(2)).filter(kept), asc.Pipeline[str])
    assert_type(len(numbers) + len(numbers.open()), int)


async def kept(text: str) -> bool:
    return bool(text)


async def fetch(number: int) -> bytes:
    return bytes(number)


class Network(nn.Module):
    def __init__(self) -> None:
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
        self.norm = nn.LayerNorm(8)

    def forward(self, x: asc.Tensor, scale: float = 1.0) -> tuple[asc.Tensor, asc.Tensor]:
        y = self.norm(self.layers(x))
        assert_type(y, asc.Tensor)
        return y, y * scale


async def train(x: asc.Tensor, labels: asc.Tensor) -> None:
    model = Network()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    scores, _ = model(x, scale=2.0)
    loss = nn.cross_entropy(scores, labels)
    assert_type(loss, asc.Tensor)
    loss.backward()
    optimizer.step()
    assert_type(nn.CrossEntropyLoss(label_smoothing=0.1)(scores, labels), asc.Tensor)
    groups = [{"params": model.parameters(), "lr": 0.1}]
    schedule = optim.schedules.OneCycleLR(optim.Adam(groups, lr=1e-3), 0.1, total_steps=10)
    schedule.step()
    assert_type(schedule.get_last_lr(), list[float])
    assert_type(nn.clip_grad_norm_(model.parameters(), 1.0), asc.Tensor)
    norm = nn.BatchNorm1d(3).to("cpu").apply(lambda module: module.train())
    assert_type(norm(scores), asc.Tensor)
    assert_type(nn.ModuleList([norm])[0], nn.Module)
    await asc.save("model.safetensors", model.state_dict())
    assert_type(await asc.load("model.safetensors"), dict[str, Any])
    assert_type(asc.autograd.grad(loss, x), list[asc.Tensor])
    assert_type(asc.autograd.grad([loss], [x], allow_unused=True), list[asc.Tensor | None])
    assert_type(optimizer.betas, tuple[float, float])
    optimizer.lr = "fast"  # E: assignment
    with asc.no_grad():
        model.eval()(x, "wide")  # E: arg-type


async def batched(s: asc.Scheduler) -> None:
    async def lengths(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    batcher = asc.Batcher(lengths)
    assert_type(await batcher("text"), int)


async def stepped(s: asc.Scheduler) -> None:
    def step(texts: list[list[str]]) -> list[str | asc.Last[str]]:
        return [text[0] if len(text) > 1 else asc.Last(text[0]) for text in texts]

    stepper = asc.Stepper(step, cost=len, ahead=2, reserve=lambda text: len(text))
    async with stepper.join(["a", "b"]) as outputs:
        async for output in outputs:
            assert_type(output, str)
    async with asc.Stepper(numbers).join("member") as given:
        assert_type(await anext(given), int)


async def numbers(members: list[str]) -> list[int | asc.Last[int] | Exception]:
    return [1 for _ in members]


async def captured(s: asc.Scheduler, x: asc.Tensor) -> asc.Graph:
    return await s.capture(lambda a: a + 1, x)


def windowed(s: asc.Scheduler) -> asc.Window:
    return s.window(2)


def ran() -> None:
    async def main() -> str:
        return "done"

    assert_type(asc.run(main), str)


# What always fails where an event loop runs, or in any place.


async def read_at_once(x: asc.Tensor) -> None:
    float(x)  # E: arg-type
    int(x)  # E: call-overload
    complex(x)  # E: call-overload
    range(x)  # E: call-overload
    [1, 2, 3][x]  # E: call-overload
    x.tolist()  # E: attr-defined
    np.exp(x)  # E: call-overload
    np.sum(x)  # E: call-overload
    np.linalg.norm(x)  # E: call-overload


async def asked_whether(x: asc.Tensor) -> None:
    if x:
        print("which")  # E: unreachable


async def added(x: asc.Tensor) -> None:
    x + "a"  # E: arg-type
    x + [1]  # E: arg-type
    x + np.ones(3)  # E: arg-type
    x @ None  # E: arg-type


async def forgotten(s: asc.Scheduler, x: asc.Tensor) -> None:
    s.put([1.0])  # E: unused-coroutine
    x.item()  # E: unused-coroutine
    s.call(parse, "1")  # E: unused-coroutine
    y = s.put([1.0])
    y + 1  # E: operator
    x.item() + 1  # E: operator
    await s.submit(np.sort, x, shape=(3,))  # E: call-overload
    for _ in s.pipeline([1]):  # E: attr-defined
        pass
    with s.scope():  # E: attr-defined
        pass


async def misnamed(s: asc.Scheduler, x: asc.Tensor) -> None:
    asc.Scheduler(max_op=3)  # E: call-arg
    asc.sume(x)  # E: attr-defined
    nn.Linear(3, 2, dtyp="f4")  # E: call-arg
    x.shape = (3,)  # E: misc
    await asc.gather(1.0)  # E: call-overload
