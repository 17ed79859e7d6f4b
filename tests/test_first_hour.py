"""What one stumbles over first: notebooks, other loops, keywords, executors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import heapq
import subprocess
import sys
import threading
from collections import Counter
from functools import partial

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import fail, held, until


async def test_run_in_a_running_loop_names_await():
    async def main() -> None:
        raise AssertionError("never called")

    with pytest.raises(RuntimeError, match=r"write `await main\(\)`"):
        asc.run(main)


def test_another_loop_is_refused_in_one_clear_sentence():
    """As trio would drive it: with no loop of asyncio's on the thread."""
    opening = asc.Scheduler("cpu").__aenter__()
    with pytest.raises(RuntimeError, match="event loop of asyncio's or uvloop's, and none runs here"):
        opening.send(None)


async def test_keywords_of_the_function_are_bound_first(s):
    x = await s.put(np.array([3.0, 4.0]))
    with pytest.raises(TypeError, match=r"ord=\.\.\. is none: use functools.partial\(norm, ord=\.\.\.\)"):
        await s.call(np.linalg.norm, x, ord=1)
    with pytest.raises(TypeError, match=r"functools.partial\(norm, ord"):
        await s.submit(np.linalg.norm, x, ord=1)
    with pytest.raises(TypeError, match=r"functools.partial\(norm, ord"):
        s.submit_nowait(np.linalg.norm, x, ord=1)
    assert await s.call(partial(np.linalg.norm, ord=1), x) == 7.0


async def test_a_call_in_place_of_a_function_is_told_to_be_taken_apart(s):
    async def load() -> int:
        return 1

    coroutine = load()
    for called in (coroutine, sum([1, 2])):
        with pytest.raises(TypeError, match=r"write `s.submit\(fn, x\)`, without calling `fn`"):
            await s.call(called)
    assert await coroutine == 1


async def test_an_asyncio_task_of_a_tensor(s):
    x = await s.put(np.arange(3.0))
    with pytest.raises(TypeError, match="a coroutine was expected"):  # which asyncio says, and we cannot
        asyncio.create_task(x + 1)  # noqa: RUF006
    for kind in (asc.Tensor, asc.Task.__mro__[1]):
        assert "`asyncio.ensure_future(t)`" in kind.__doc__
    assert (await asyncio.ensure_future(x + 1)).tolist() == [1.0, 2.0, 3.0]
    assert [a.tolist() for a in await asyncio.gather(x + 1, x)] == [[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]]
    assert (await asyncio.wait_for(x + 1, 60)).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("what", ["save", "load"])
async def test_without_safetensors_the_extra_is_named_before_anything_is_waited_for(
    s, gate, monkeypatch, tmp_path, what
):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.delitem(sys.modules, "safetensors")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    epoch = await s.submit(held, gate, shape=(), dtype=float)
    doing = asc.save(tmp_path / "a", {"loss": epoch}) if what == "save" else asc.load(tmp_path / "a")
    with pytest.raises(
        ModuleNotFoundError, match=rf'asyncsched.{what} needs .*pip install "asyncsched\[safetensors\]"'
    ):
        await doing
    assert not epoch.done()
    epoch.cancel()


async def test_a_scheduler_that_is_opened_stays_open():
    s = await asc.open("cpu", max_ops=3)
    assert s.statistics().max_ops == 3
    assert (await asc.arange(3)).tolist() == [0, 1, 2]  # found, being the only one on this loop
    await s.aclose()
    with pytest.raises(asc.SchedulerClosed):
        asc.arange(3)


@pytest.mark.filterwarnings("ignore:.*never closed:ResourceWarning")
async def test_a_cell_that_opens_a_scheduler_may_run_again(gate):
    """The first scheduler is dropped, and closes. Its tensors say so, and nothing waits for ever."""
    s = await asc.open("cpu")
    x, slow = asc.arange(300_000), await s.submit(held, gate)
    waiting = asyncio.ensure_future(slow)
    assert (await x).sum() == 300_000 * 299_999 // 2
    s = await asc.open("cpu")
    gc.collect()
    with pytest.raises(
        asc.SchedulerClosed, match="nothing referred to the open scheduler.* Keep the variable that holds it"
    ):
        x + 1
    with pytest.raises(asc.SchedulerClosed, match="nothing referred to the open scheduler"):
        await waiting
    gate.set()
    assert (await x)[-1] == 299_999
    assert (await (asc.arange(3) + 1)).tolist() == [1, 2, 3]  # the only one that is open
    await s.aclose()
    with pytest.raises(
        asc.SchedulerClosed, match="no scheduler is open on this loop|nothing referred to the open scheduler"
    ):
        asc.arange(3)


@pytest.mark.filterwarnings("ignore:.*never closed:ResourceWarning")
@pytest.mark.usefixtures("may_block")  # the first pipeline imports multiprocessing
async def test_pipelines_and_scopes_of_other_cells_do_not_keep_a_scheduler_open():
    s = await asc.open("cpu")
    async with s.scope() as scope:
        pipe = s.pipeline(range(4)).batch(2).to_device()
        async with pipe.open() as batches:
            assert [(await batch).tolist() async for batch in batches] == [[0, 1], [2, 3]]
    s = await asc.open("cpu")
    gc.collect()
    assert (await (asc.arange(3) + 1)).tolist() == [1, 2, 3]  # the only one that is open
    for work in (pipe.open().__aenter__, lambda: scope.put(3)):
        with pytest.raises(asc.SchedulerClosed):
            await work()
    await s.aclose()


@pytest.mark.usefixtures("may_block")
@pytest.mark.filterwarnings("ignore:.*never closed:ResourceWarning")
async def test_instruments_do_not_keep_a_scheduler_open(tmp_path):
    summary, trace = asc.observe.Summary(), asc.Trace(tmp_path / "run.json")
    s = await asc.open("cpu", instruments=[summary, trace])
    assert await s.call(len, "abc") == 3
    s = await asc.open("cpu")
    gc.collect()
    assert (await (asc.arange(3) + 1)).tolist() == [1, 2, 3]  # the only one that is open
    assert "closed" in summary.read().name
    await s.aclose()


def test_a_scheduler_that_is_opened_closes_with_the_interpreter():
    code = """
import asyncio, atexit, asyncsched as asc
loop = asyncio.new_event_loop()
atexit.register(loop.close)  # or asyncio itself complains
s = loop.run_until_complete(asc.open("cpu"))
async def cell():
    return await asc.arange(4).sum().item()
print(loop.run_until_complete(cell()))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("6\n", "")


async def test_an_executor_within_the_bounds(s):
    loop, executor = asyncio.get_running_loop(), s.as_executor()
    before = s.statistics().tasks_submitted
    assert await loop.run_in_executor(executor, divmod, 7, 2) == (3, 1)
    assert s.statistics().tasks_submitted == before + 1
    with pytest.raises(LookupError):
        await loop.run_in_executor(executor, fail)
    found = await asyncio.to_thread(lambda: executor.submit(sorted, [2, 1], reverse=True).result(60))
    assert found == [2, 1]
    assert isinstance(executor, concurrent.futures.Executor)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="was shut down"):
        executor.submit(print)


async def test_an_executors_future_is_cancelled_before_it_is_admitted(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        executor, started = s.as_executor(), threading.Event()

        def body() -> int:
            started.set()
            held(gate)
            return 1

        first = executor.submit(body)
        await until(started.is_set)
        second = executor.submit(print, "never")
        assert second.cancel()
        gate.set()
        assert await asyncio.wrap_future(first) == 1
        await s.barrier()
        assert s.statistics().tasks_cancelled <= 1


async def test_an_argument_without_tensors_is_passed_as_it_is(s):
    """As `asyncio.to_thread` passes it: what the function changes is changed."""
    heap, counts, nested = [5], Counter("a"), ([1], {"b": [2]})
    await s.call(heapq.heappush, heap, 3)
    await s.call(counts.__class__.update, counts, ["a"])
    await s.call(lambda both: both[1]["b"].append(4), nested)
    assert (heap, counts, nested) == ([3, 5], {"a": 2}, ([1], {"b": [2, 4]}))
    await asyncio.wrap_future(s.as_executor().submit(heapq.heappush, heap, 1))
    assert heap == [1, 5, 3]
    given = [await s.put(np.ones(2)), heap]
    arrays = await s.call(lambda both: (type(both[0]), both[1] is heap), given)
    assert arrays == (np.ndarray, True)
    assert isinstance(given[0], asc.Tensor)


async def test_a_step_written_by_hand_as_in_pytorch_is_told_how_to_be_written(s):
    w = asc.ones(3)
    w.requires_grad = True
    (w * w).sum().backward()
    with asc.no_grad():
        moved = w
        moved -= 0.25 * w.grad
    with pytest.raises(
        RuntimeError, match=r"`t -= ...` makes a new tensor, .* `with asc.no_grad\(\): t\[...\] = t - ...`"
    ):
        moved.grad = None
    with asc.no_grad():
        w[...] = w - 0.25 * w.grad
    w.grad = None
    assert (await w).tolist() == [0.5, 0.5, 0.5]
    assert w.requires_grad


@pytest.mark.parametrize(
    ("slip", "error", "message"),
    [
        (lambda o: asc.nn.Linear(6 / 2, 2), TypeError, "cannot be interpreted as an integer"),
        (lambda o: asc.nn.Embedding(10.0, 2), TypeError, "cannot be interpreted as an integer"),
        (lambda o: asc.optim.schedules.StepLR(o, 0), ValueError, "step_size must be at least 1, not 0"),
        (
            lambda o: asc.optim.schedules.CosineAnnealingLR(o, 0),
            ValueError,
            "T_max must be a finite number of steps above",
        ),
    ],
)
async def test_a_wrong_size_raises_at_its_line(s, slip, error, message):
    optimizer = asc.optim.SGD(asc.nn.Linear(1, 1, rng=0).parameters(), lr=0.1)
    with pytest.raises(error, match=message):
        slip(optimizer)
    await s.barrier()


LOSSES = (
    "binary_cross_entropy_with_logits", "cross_entropy", "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss"
)  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_loss_of_what_is_no_tensor_names_put(s, loss):
    loss, x = getattr(asc.nn, loss), asc.zeros((2, 3), dtype=np.float32)
    for other in ([0, 1], np.zeros(2, int)):
        for operands in ((x, other), (other, x)):
            with pytest.raises(TypeError, match=r"no operand: `x = await s.put\(a\)` makes it a tensor"):
                loss(*operands)
    for other in (None, 1, "a"):
        with pytest.raises(
            TypeError, match="NoneType is no operand|takes tensors, not int: `x = await|str is no operand"
        ):
            loss(x, other)
