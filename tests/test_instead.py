"""What one types by habit from NumPy, PyTorch and asyncio: it works, or the error names what to write instead."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import _instead, array_api, nn, optim
from asyncsched.serving import Serving
from tests.waiting import no_collector

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("may_block")]


@pytest.fixture
async def x(s: asc.Scheduler) -> asc.Tensor:
    return await s.put(np.arange(6, dtype=np.float32).reshape(2, 3))


TABLES: list[tuple[dict[str, str], Callable[[asc.Scheduler], Any]]] = [
    (_instead.PACKAGE, lambda s: asc),
    (_instead.RANDOM, lambda s: asc.random),
    (_instead.LINALG, lambda s: asc.linalg),
    (_instead.FUNCTIONAL, lambda s: nn.functional),
    (_instead.NN, lambda s: nn),
    (_instead.UTILS, lambda s: nn.utils),
    (_instead.OPTIM, lambda s: optim),
    (_instead.AUTOGRAD, lambda s: asc.autograd),
    (_instead.TENSOR, lambda s: asc.ones(3)),
    (_instead.MODULE, lambda s: nn.ReLU()),
    (_instead.OPTIMIZER, lambda s: optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)),
    (_instead.SUBMITTER, lambda s: s),
    (_instead.SCOPE, lambda s: s.scope()),
    (_instead.PIPELINE, lambda s: s.pipeline(range(3))),
    (_instead.ARRAY_API, lambda s: array_api),
]


@pytest.mark.parametrize(("table", "of"), TABLES, ids=range(len(TABLES)))
async def test_each_name_has_a_cure(s, table, of):
    owner = of(s)
    for name, cure in table.items():
        assert name not in dir(owner)
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': .*{re.escape(cure)}$"):
            getattr(owner, name)
    with pytest.raises(AttributeError, match=r"no attribute 'whatever'$"):
        owner.whatever  # noqa: B018


async def test_a_dtype_by_pytorchs_name_is_that_dtype(x):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for name in ("bool", "half", "float", "double", "int", "long"):
        dtype = str(getattr(torch.ones(1), name)().dtype).removeprefix("torch.")
        with pytest.raises(AttributeError, match=rf"use `t.astype\(asc.{dtype}\)`$"):
            getattr(x, name)


AS_A_TASK = "which runs NumPy's function as a task and waits for it"


@pytest.mark.parametrize(
    ("owner", "name", "cure"),
    [
        (asc, "unwrap", f"`await s.call(np.unwrap, t)`, {AS_A_TASK}"),
        (asc, "degrees", f"`await s.call(np.degrees, t)`, {AS_A_TASK}"),
        (
            asc.linalg,
            "lstsq",
            "`await s.call(np.linalg.lstsq, a, b)`, which runs NumPy's function as a task and waits for it",
        ),
        (asc, "fmod", f"`await s.call(np.fmod, t, other)`, {AS_A_TASK}"),
        (asc, "fill_diagonal", "`t[index] = value`"),  # a task's arguments are read-only
        (array_api, "kron", "`xp.asarray(np.kron(...))`, with `np.asarray(x)` for arrays, which waits"),
        (asc.fft, "fft2", f"`await s.call(np.fft.fft2, t)`, {AS_A_TASK}"),
        (asc, "cumsum", "`asyncsched.cumulative_sum(t, axis=0)`"),
        (array_api, "degrees", "`xp.asarray(np.degrees(np.asarray(x)))`, which waits"),
        (array_api, "cumsum", "`xp.cumulative_sum(t, axis=0)`"),
        (asc, "set_printoptions", None),
        (nn, "median", None),
    ],
)
def test_a_function_that_only_numpy_has_is_named_as_a_task(owner, name, cure):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'" + (f": {re.escape(cure)}$" if cure else "$")):
        getattr(owner, name)


async def test_where_a_cure_is_named_python_guesses_nothing(x):
    for use in (lambda: x.numel(), lambda: asc.tensor, lambda: nn.Conv3d):
        with pytest.raises(AttributeError) as caught:
            use()
        assert "Did you mean" not in "".join(traceback.format_exception(caught.value))


async def test_cures_that_are_found_by_a_rule(x, s):
    with pytest.raises(AttributeError, match=r"no attribute 'exp': use `asc.exp\(t\)`$"):
        x.exp()
    with pytest.raises(AttributeError, match=r"no attribute 'median': use `asc.median\(t\)`$"):
        x.median()
    with pytest.raises(AttributeError, match=r"no attribute 'add_': use `t = ...` or "):
        x.add_(1)
    task = await s.submit(np.linalg.norm, x)
    with pytest.raises(AttributeError, match=r"no attribute 'shape': use `await t`, or a Tensor, which `submit\(fn"):
        task.shape  # noqa: B018
    with pytest.raises(AttributeError, match=r"'add_done_callback': use `asyncio.ensure_future\(t\)`"):
        await asyncio.wait([task])
    assert await task > 0


async def test_a_name_that_is_misspelt_is_guessed_and_the_error_holds_no_tensor(x):
    with pytest.raises(AttributeError) as caught:
        x.reshpe(-1)
    assert (caught.value.name, caught.value.obj) == ("reshpe", asc.Tensor)  # by which Python guesses


WRONG_KEYWORDS: list[tuple[Callable[[asc.Tensor], Any], str]] = [
    (lambda x: asc.sum(x, dim=1), r"argument 'dim': use `axis=`$"),
    (lambda x: asc.sum(x, 1), r"2 were given: use `axis=`$"),
    (lambda x: asc.argmax(x, 1), r"2 were given: use `axis=`$"),
    (lambda x: asc.linalg.vector_norm(x, dim=0), r"argument 'dim': use `axis=`$"),
    (lambda x: asc.fft.fft(x, dim=0), r"argument 'dim': use `axis=`$"),
    (lambda x: asc.concat([x, x], dim=1), r"argument 'dim': use `axis=`$"),
    (lambda x: asc.permute_dims(x, dims=(1, 0)), r"argument 'dims': use `axes=`$"),
    (lambda x: asc.std(x, ddof=1), r"argument 'ddof': use `correction=`$"),
    (lambda x: x.std(correction=1), r"argument 'correction': use `ddof=`$"),
    (lambda x: x.sum(dim=1, keepdim=True), r"argument 'dim': use `axis=`, `keepdims=`$"),
    (lambda x: asc.sum(x, where=1), r"argument 'where': use `asc.where\(mask, a, b\)` on the operands or on"),
    (
        lambda x: asc.max(x, out=x),
        r"argument 'out': use `c\[...\] = asc.max\(...\)`, which writes into an existing tensor$",
    ),
    (lambda x: asc.linalg.vector_norm(x, out=x), r"use `c\[...\] = asc.linalg.vector_norm\(...\)`, which"),
    (lambda x: x.sum(out=x), r"argument 'out': use `c\[...\] = t.sum\(...\)`, which writes into an existing tensor$"),
    (lambda x: asc.sum(x, initial=1), r"use `initial \+ asc.sum\(x\)`"),
    (lambda x: asc.sum(x, nonsense=1), r"argument 'nonsense'$"),
    (lambda x: asc.sort(x, kind="stable"), r"argument 'kind': use `stable=`$"),
    (lambda x: asc.ones(2, 3), r"2 were given: use `asc.ones\(\(2, 3\)\)`$"),
    (lambda x: asc.zeros(2, 3, 4, dtype=int), r"use `asc.zeros\(\(2, 3, 4\)\)`$"),
    (lambda x: asc.full(2, 3, 7.5), r"use `asc.full\(\(2, 3\), 7.5\)`$"),
    (lambda x: asc.zeros((2, 3), np.float32), r"2 were given: use `dtype=`$"),
    (lambda x: asc.zeros(2, np.float32), r"2 were given: use `dtype=`$"),
    (lambda x: asc.reshape(x, 3, 2), r"use `asc.reshape\(x, \(3, 2\)\)`$"),
    (lambda x: asc.broadcast_to(x, 4, 2, 3), r"use `asc.broadcast_to\(x, \(4, 2, 3\)\)`$"),
    (lambda x: asc.permute_dims(x, 1, 0), r"use `asc.permute_dims\(x, \(1, 0\)\)`$"),
    (lambda x: asc.concat(x, x), r"use `asc.concat\(\[a, b\]\)`$"),
    (lambda x: asc.stack(x, x), r"use `asc.stack\(\[a, b\]\)`$"),
    (lambda x: asc.concat([x, x], 1), r"use `axis=`$"),
    (lambda x: asc.tile(x, 2, 2), r"use `asc.tile\(x, \(2, 2\)\)`$"),
    (lambda x: x.mean(0, 1), r"use `axis=\(0, 1\)`$"),
    (lambda x: x.std(unbiased=True), r"argument 'unbiased': use `ddof=`$"),
    (lambda x: asc.sum(x, axes=1), r"argument 'axes': use `axis=`$"),
    (lambda x: asc.sum(x, keep_dims=True), r"argument 'keep_dims': use `keepdims=`$"),
    (lambda x: x.to(dtype=np.float32), r"argument 'dtype': use `t.astype\(dtype\)`$"),
    (lambda x: x.flatten(1), r"2 were given: use `t.reshape\(\(t.shape\[0\], -1\)\)` for all but the first axis$"),
    (lambda x: x.round(2), r"2 were given: use `\(t \* 100\).round\(\) / 100` for two decimals$"),
    (lambda x: nn.softmax(x, dim=1), r"argument 'dim': use `axis=`$"),
    (lambda x: nn.functional.log_softmax(x, dim=1), r"argument 'dim': use `axis=`$"),
    (lambda x: nn.Softmax(dim=1), r"argument 'dim': use `axis=`$"),
    (lambda x: nn.functional.dropout(x, p=0.5, training=True), r"'training': use `asc.nn.Dropout\(p\)`"),
    (lambda x: nn.Linear(2, 2).to(dtype=np.float64), r"'dtype': use `dtype=` of the layers' constructors$"),
    (lambda x: asc.sum(x, axis="a"), r"cannot be interpreted as an integer$"),  # what the function itself raises
]


@pytest.mark.parametrize(("use", "told"), WRONG_KEYWORDS)
async def test_a_keyword_of_numpy_or_pytorch_names_the_keyword_here(x, use, told):
    with pytest.raises(TypeError, match=told):
        use(x)


WRONG_OPTIONS: list[tuple[Callable[[asc.Scheduler], Any], str]] = [
    (lambda s: asc.Scheduler(stream=2), r"argument 'stream': use `streams=`$"),
    (lambda s: asc.Scheduler("cpu", num_workers=2, memory_limit="1 GiB"), r": use `streams=`"),
    (lambda s: asc.Scheduler(memory_limit="1 GiB"), r"argument 'memory_limit': use `max_bytes=`$"),
    (lambda s: asc.Scheduler(devices=["cpu"]), r"argument 'devices': use `device=`$"),
    (lambda s: asc.Scheduler("cpu", "cuda"), r"use `asc.Scheduler\(\['cpu', 'cuda'\]\)`$"),
    (lambda s: optim.SGD([asc.ones(3)], learning_rate=0.1), r"argument 'learning_rate': use `lr=`$"),
    (lambda s: optim.SGD([asc.ones(3)], 0.1, 0.9), r"use `momentum=`$"),
    (lambda s: asc.Scheduler("cpu", 2), r"3 were given: use `streams=`$"),
    (lambda s: asc.Scheduler(frobnicate=1), r"argument 'frobnicate'$"),
    (lambda s: s.scope(timeout=3), r"argument 'timeout': use `deadline=`$"),
    (lambda s: s.scope(max_bytes=3), r"argument 'max_bytes': use `reserve=`$"),
    (lambda s: s.scope("request"), r"2 were given: use `name=`$"),
    (lambda s: s.window(size=2), r"argument 'size'$"),
    (lambda s: s.pipeline([1]).map(str, num_workers=3), r"argument 'num_workers': use `workers=`$"),
    (lambda s: s.pipeline([1]).batch(batch_size=3), r"argument 'batch_size': use `size=`$"),
    (lambda s: s.pipeline([1]).batch(3, drop_remainder=True), r"argument 'drop_remainder': use `drop_last=`$"),
    (lambda s: s.pipeline([1]).batch(3, True), r"3 were given: use `drop_last=`$"),
    (lambda s: s.pipeline([1]).to_device("cpu"), r"2 were given: use `device=`$"),
    (lambda s: s.pipeline([1]).to_device(2), r"2 were given: use `depth=`$"),
    (lambda s: s.pipeline([1]).map(str, 2), r"3 were given: use `workers=`$"),
    (
        lambda s: optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1).step(print),
        r"use `loss.backward\(\)`, then `optimizer.st",
    ),
    (lambda s: s.pipeline([1]).batch(3, collate_fn=list), r"argument 'collate_fn': use `collate=`$"),
    (lambda s: s.pipeline([1]).to_device(prefetch=2), r"argument 'prefetch': use `depth=`$"),
    (lambda s: s.pipeline([1], sampler=[0]), r"argument 'sampler': use `order=`$"),
    (lambda s: s.pipeline([1]).shard(num_replicas=2, rank=0), r"argument 'num_replicas': use `count=`, `index=`$"),
    (lambda s: s.pipeline([1]).repeat(count=3), r"argument 'count': use `epochs=`$"),
    (lambda s: s.pipeline([1], shuffle=True), r"use `order=` with a permutation, or `.shuffle\(1000, seed=0\)`$"),
    (lambda s: s.pipeline([1], batch_size=8, num_workers=2), r"use `.batch\(size\)`, `.map\(fn, workers=4\)`$"),
    (lambda s: s.pipeline([1], collate_fn=list, in_order=False), r"collate=fn\)`, `.map\(fn, workers=4, ordered=False"),
    (lambda s: s.pipeline([1], 8), r"3 were given: use `.batch\(size\)`$"),
    (lambda s: s.pipeline([1], worker_init_fn=print), r"argument 'worker_init_fn'$"),
    (lambda s: asc.quantile(asc.ones(3), 0.5, interpolation="nearest"), r"'interpolation': use `method=`$"),
    (lambda s: s.pipeline([1], prefetch=2), r"argument 'prefetch': use `buffer=`$"),
    (lambda s: Serving(print, timeout=3), r"argument 'timeout': use `deadline=`$"),
    (lambda s: Serving(print, max_request=3), r"argument 'max_request': use `max_requests=`$"),
    (lambda s: asc.Batcher(list, max_batch_size=3), r"argument 'max_batch_size': use `max_batch_cost=`$"),
    (lambda s: asc.Stepper(list, max_num_seqs=3), r"argument 'max_num_seqs': use `max_cost=`$"),
    (lambda s: asc.Stepper(list, maxsize=3), r"argument 'maxsize': use `ahead=`$"),
]


@pytest.mark.parametrize(("use", "told"), WRONG_OPTIONS, ids=range(len(WRONG_OPTIONS)))
async def test_a_misspelt_or_foreign_option_names_the_option_here(s, use, told):
    with pytest.raises(TypeError, match=told):
        use(s)


@pytest.mark.parametrize(("name", "cure"), _instead.STAGES.items())
async def test_the_cures_for_a_data_loaders_arguments_can_be_written(s, name, cure):
    with pytest.raises(TypeError, match=rf"argument '{name}': use {re.escape(cure)}$"):
        s.pipeline([1], **{name: 1})
    there = {"size": 2, "fn": str, "epochs": 2, "index": 0, "count": 2}
    for stage in re.findall(r"`(\..*?)`", cure):
        assert repr(eval(f"s.pipeline(range(6)){stage}", {"s": s} | there)).startswith("Pipeline(range, ")


async def test_an_option_that_open_does_not_know_names_the_right_one():
    with pytest.raises(TypeError, match=r"argument 'stream': use `streams=`$"):
        await asc.open("cpu", stream=2)


async def test_a_wrong_call_holds_no_tensor(s):
    x = await s.put(np.ones(1000))
    with no_collector():
        with pytest.raises(TypeError, match="use `axis=`"):
            asc.sum(x, dim=1)
        del x
        assert s.statistics().bytes_retained == 0


@pytest.mark.parametrize(
    "block",
    [lambda s: s, lambda s: s.scope(), lambda s: s.window(2), lambda s: s.pipeline([1]).open(), lambda s: asc.Timer()],
    ids=["scheduler", "scope", "window", "pipeline", "timer"],
)
async def test_a_plain_with_names_async_with(s, block):
    with pytest.raises(TypeError, match=r"waits at the end of its block.*: use `async with`"), block(s):
        raise AssertionError("never entered")


def test_a_plain_with_outside_of_any_loop_names_the_way_in():
    told = r"^a Scheduler waits .* `async with`, in an `async def` that `asyncsched.run"
    with pytest.raises(TypeError, match=told), asc.Scheduler("cpu"):  # type: ignore[attr-defined]
        raise AssertionError("never entered")


async def test_after_the_end_the_ways_to_open_another_are_named():
    s = await asc.open("cpu")
    x = await s.put(np.ones(3))
    await s.aclose()
    for use in (lambda: x + 1, lambda: asc.ones(3), lambda: s.submit_nowait(int), asc.Scheduler("cpu").load):
        with pytest.raises(asc.SchedulerClosed) as caught:
            use()
        told = "`async with asyncsched.Scheduler() as s`, or in a notebook `s = await asyncsched.open()`"
        assert told in str(caught.value)


async def test_a_method_that_is_a_function_names_the_function(x):
    for name in ("median", "degrees", "interp", "histogram"):  # which ours is, if there is one, and else NumPy's
        given = r"t, xp, fp" if name == "interp" else "t"
        cure = rf"use `asc.{name}\({given}\)`$" if name in asc.__all__ else rf"use `await s.call\(np.{name}, t\)`"
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': {cure}"):
            getattr(x, name)
    with pytest.raises(AttributeError, match=r"no attribute 'set_printoptions'$"):
        x.set_printoptions  # noqa: B018


REFUSED: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (lambda s, x: x - [1, 2, 3], TypeError, r"^list is no operand.*`x = await s.put\(a\)`"),
    (lambda s, x: [1, 2, 3] - x, TypeError, r"^list is no operand"),
    (lambda s, x: x == [1, 2, 3], TypeError, r"^list is no operand"),
    (lambda s, x: x + np.ones(3), TypeError, r"numpy.ndarray is no operand.*`x = await s.put\(a\)`"),
    (lambda s, x: x + s.submit_nowait(int), TypeError, r"Task is no operand: `await` it first, or .*shape=, dtype="),
    (lambda s, x: asc.exp([1.0]), TypeError, r"^list is no operand.*`x = await s.put\(a\)`"),
    (lambda s, x: asc.exp("a"), TypeError, r"^str is no operand: use a Tensor"),
    (lambda s, x: x + "a", TypeError, r"unsupported operand"),
    (lambda s, x: np.linalg.norm(x), asc.ImplicitBarrierError, r"np.linalg.norm\(t\).*`asyncsched.linalg.vector_norm"),
    (lambda s, x: np.linalg.inv(x), asc.ImplicitBarrierError, r"np.linalg.inv\(t\).*`asyncsched.linalg.inv\(t\)`"),
    (lambda s, x: np.fft.fft(x), asc.ImplicitBarrierError, r"np.fft.fft\(t\).*`asyncsched.fft.fft\(t\)`"),
    (lambda s, x: np.zeros_like(x), asc.ImplicitBarrierError, r"`asyncsched.zeros_like\(t\)`"),
    (lambda s, x: np.concatenate([x, x]), asc.ImplicitBarrierError, r"`asyncsched.concat\(ts\)`"),
    (lambda s, x: np.absolute(x), asc.ImplicitBarrierError, r"np.absolute\(t\).*`asyncsched.abs\(t\)`"),
    (lambda s, x: np.shape(x), asc.ImplicitBarrierError, r"use `t.shape`"),
    (lambda s, x: np.allclose(x, x), asc.ImplicitBarrierError, r"or `await t` first"),
    (lambda s, x: round(x.sum(), 2), asc.ImplicitBarrierError, r"`round\(await t.item\(\)\)`"),
    (lambda s, x: x.to(np.float64), TypeError, r"`t.astype\(dtype\)`"),
    (lambda s, x: asc.gather([x, x]), TypeError, r"`asc.gather\(\*them\)`"),
    (lambda s, x: asc.gather(s.barrier), TypeError, r"use asyncio.gather for coroutines"),
    (lambda s, x: list(s.pipeline(range(3))), TypeError, r"`async with pipe.open\(\) as items:`"),
    (lambda s, x: aiter(s.pipeline(range(3))), TypeError, r"`async with pipe.open\(\) as items:`"),
    (lambda s, x: s.pipeline(s.pipeline(range(3))), TypeError, r"not Pipeline"),
    (lambda s, x: Serving(print, s), TypeError, r"`lambda: Scheduler\(...\)`"),
    (lambda s, x: Serving(print, max_requests_per_tenant=2), ValueError, r"needs `tenant=`"),
    (lambda s, x: optim.SGD(nn.Linear(2, 2), lr=1.0), TypeError, r"`model.parameters\(\)`"),
    (lambda s, x: optim.SGD(nn.Sequential(nn.Linear(2, 2)), lr=1.0), TypeError, r"`model.parameters\(\)`"),
    (lambda s, x: pickle.dumps(nn.Linear(2, 2)), TypeError, r"`await asc.save\(path, model.state_dict\(\)\)`"),
    (lambda s, x: copy.copy(x), TypeError, r"Tensors are values"),
    (lambda s, x: copy.deepcopy([x]), TypeError, r"Tensors are values"),
    (lambda s, x: nn.Linear(2, 2).zero_grad(False), ValueError, r"leave `set_to_none` out"),
    (
        lambda s, x: optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0).zero_grad(set_to_none=False),
        ValueError,
        r"leave `set_to_none` out",
    ),
]


@pytest.mark.parametrize(("habit", "error", "cure"), REFUSED, ids=range(len(REFUSED)))
async def test_a_habit_is_refused_with_its_cure(s, x, habit, error, cure):
    with pytest.raises(error, match=cure):
        habit(s, x)


@pytest.mark.parametrize(
    ("several", "error"),
    [({"a": np.ones(3)}, TypeError), ((np.ones(3), 1), ValueError), ([np.ones(3), np.ones(2)], ValueError)],
)
async def test_several_arrays_are_put_one_by_one(s, several, error):
    with pytest.raises(error, match=r"^put takes one array.* by itself"):
        await s.put(several)
    with pytest.raises(error, match=r"^put takes one array.* by itself"):
        s.put_nowait(several)


async def test_put_has_no_dtype(s, x):
    cure = r"'dtype': use `np.asarray\(array, dtype\)`, or `t.astype\(dtype\)`"
    with pytest.raises(TypeError, match=cure):
        await s.put([1, 2], dtype="float32")
    with pytest.raises(TypeError, match=cure):
        s.put_nowait([1, 2], dtype="float32")
    with pytest.raises(TypeError, match="use `device=`"):
        await s.put([1, 2], devise="cpu")
    with pytest.raises(TypeError, match="keyword argument 'zero'$"):
        await s.put([1, 2], zero=0)
    assert (await s.put(np.asarray([1, 2], "float32"))).dtype == "float32"


async def test_a_coroutine_is_no_operand(s, x):
    coming = s.put(np.ones(3))
    for use in (lambda: x + coming, lambda: coming * x, lambda: asc.exp(coming)):
        with pytest.raises(TypeError, match=r"^coroutine is no operand: `await` it first$"):
            use()
    assert await (x + await coming).max().item() == 6


async def test_a_pipeline_is_no_block(s):
    with pytest.raises(TypeError, match=r"`async with pipe.open\(\) as items:`"):
        async with s.pipeline(range(3)):
            pass


async def test_what_pytorch_saves_the_other_way_round(s, tmp_path):
    with pytest.raises(TypeError, match=r"`await asc.save\(path, state\)`"):
        await asc.save({"a": 1}, tmp_path / "a")  # type: ignore[arg-type]


async def test_another_thread_gets_the_cure(s):
    with pytest.raises(RuntimeError, match="in a server `async def` handlers"):
        await asyncio.to_thread(asc.ones, 3)


async def test_a_task_gets_the_cure_to_take_tensors_as_arguments(s, x):
    with pytest.raises(RuntimeError, match="pass tensors to the task as arguments, which arrive as arrays") as caught:
        await s.call(lambda: x + 1)
    assert "run_coroutine_threadsafe" not in str(caught.value)


async def test_a_module_used_as_a_task_gets_the_cure_to_call_it(s, x):
    for use in (nn.Linear(3, 2), lambda a: asc.exp(a)):
        with pytest.raises(TypeError, match=r"arrive as arrays: call this on the event loop, as `model\(x\)`"):
            await s.call(use, x)


async def test_a_number_is_rounded_where_waiting_is_right(x):
    assert await asyncio.to_thread(round, x.mean(), 1) == 2.5
    assert await asyncio.to_thread(round, x.mean()) == 2


async def test_gradients_are_dropped_as_pytorch_writes_it(x):
    model = nn.Linear(3, 2, rng=0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for drop in (lambda: optimizer.zero_grad(set_to_none=True), lambda: model.zero_grad(True)):
        model(x).sum().backward()
        drop()
        assert model.weight.grad is None


async def test_a_copied_module_has_the_values_of_the_moment_and_goes_its_own_way(x):
    model = nn.Sequential(nn.Linear(3, 4, rng=0), nn.BatchNorm1d(4), nn.Linear(4, 1, rng=1))
    model.tied = [model[0].weight]  # type: ignore[assignment]
    before = {name: await tensor for name, tensor in model.state_dict().items()}
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    best = copy.deepcopy(model)
    assert best.tied[0] is best[0].weight is not model[0].weight
    assert [n for n, _ in best.named_parameters()] == [n for n, _ in model.named_parameters()]
    ((model(x) - 1) ** 2).sum().backward()
    optimizer.step()
    assert best[0].weight.grad is None
    for name, tensor in best.state_dict().items():
        np.testing.assert_array_equal(await tensor, before[name])
    assert (await model[2].weight != before["2.weight"]).any()
    theirs = optim.SGD(best.parameters(), lr=0.1)
    ((best(x) - 1) ** 2).sum().backward()
    theirs.step()
    for tensor, other in zip(best.parameters(), model.parameters(), strict=True):
        np.testing.assert_array_equal(await tensor, await other)


CURES = """
asc.abs(t); asc.exp(t); asc.concat([t, t], axis=0); asc.stack([t, t]); t[:1]; t[1:]; t @ t.T; t.astype(asc.float64)
asc.clip(t, 0, 1); t.clip(0, 1); asc.where(asc.isnan(t), 0, t); asc.where(t > 2, 0, t); t[t > 2] = 0; t[...] = 0
asc.linalg.vector_norm(t); asc.linalg.matrix_norm(t); asc.linalg.diagonal(t); asc.linalg.trace(t[:, :2]); t**2; t.T
asc.permute_dims(t, (1, 0)); t.transpose(1, 0); asc.expand_dims(t, axis=0); asc.broadcast_to(t, (4, 2, 3)); t.max()
asc.sort(t)[..., -2:]; asc.argsort(t)[..., -2:]; asc.cumulative_sum(t, axis=0); asc.cumulative_prod(t, axis=0)
asc.random.default_rng(0).normal(size=3); asc.random.default_rng(0).random(3); asc.random.default_rng(0).integers(3)
asc.take_along_axis(t, asc.argsort(t)); t.flatten(); t.detach(); t.copy(); t.to("cpu"); t.device; t.ndim; t.size
t.clip(min=1); t.clip(max=2); asc.where(t > 1, t, t); t.reshape((t.shape[0], -1)); (t * 100).round() / 100; t % 2
asc.linalg.inv(t[:, :2]); asc.conj(t.mT); asc.topk(t, 2); asc.percentile(t, 50); asc.atan2(t, t); asc.add(t, t); -t
asc.eye(3)[t.astype(asc.int64) % 3]; asc.linalg.outer(t[0], t[1]); isinstance(t, asc.Tensor); asc.result_type(t, t)
s.devices[0].streams; asc.Trace; asc.Timer; asc.measure; s.graph(t); s.explain(); s.scope(deadline=3); asc.Batcher(list)
sum(p.size for p in nn.Linear(2, 2).parameters()); next(nn.Linear(2, 2).parameters()).device; optim.SGD; asc.cluster
nn.Dropout(0.5); nn.dropout(t, 0.5, seed=0); asc.pad(t, 1); asc.histogram(t, 3, range=(0, 1)); asc.digitize(t, [0, 1])
s.pipeline(range(9)).state_dict()["epoch"]; s.pipeline(range(9)).open(); s.pipeline(range(9)).shard(0, 2); asc.nn.Module
nn.relu(t); nn.softmax(t); nn.log_softmax(t); nn.sigmoid(t); nn.dropout(t, 0.5, seed=0); nn.Linear(3, 2).to("cpu")
asc.autograd.grad; asc.observe; optim.schedules.StepLR; optim.schedules.CosineAnnealingLR; optim.schedules.OneCycleLR
s.capture; s.as_executor; s.statistics().max_bytes; s.statistics().max_ops; s.load(); s.aclose; s.call; s.barrier
s.pipeline(range(9)).map(str, workers=4, buffer=3).batch(64).to_device(depth=2)
s.pipeline(lambda epoch: (x for x in range(9) if x % 2)); s.pipeline(range(9)).batch(2, collate=list, drop_last=True)
asc.Scheduler(streams=2, max_bytes=9, max_ops=3); s.scope(deadline=1); asc.Batcher(list, max_batch_cost=2)
asc.Stepper(list, max_cost=2, ahead=3)
""".strip().splitlines()


@pytest.mark.parametrize("cures", CURES)
async def test_the_cures_can_be_written(s, x, cures):
    there = {"asc": asc, "nn": nn, "optim": optim, "s": s, "t": x}
    for cure in cures.split("; "):
        exec(cure, there)
    with asc.no_grad():
        layer = nn.Linear(3, 2)
        layer.weight[...] = x
    await s.barrier()
    assert (await layer.weight == await x).all()


@pytest.mark.parametrize("name", _instead.OPTIONS)
def test_an_option_that_layers_do_not_have_has_a_cure(name):
    with pytest.raises(TypeError, match=rf"^a layer has no option '{name}': {re.escape(_instead.OPTIONS[name])}$"):
        nn.Conv2d(4, 4, 3, **{name: 1})
    with pytest.raises(TypeError, match=r"^a layer has no option 'whatever'$"):
        nn.MultiheadAttention(4, 2, whatever=1)


def test_padding_in_words_says_where_it_takes_numbers():
    with pytest.raises(TypeError, match=r"^'same' is no size: give numbers; `padding=kernel_size // 2`"):
        nn.MaxPool2d(3, padding="same")
    for layer in (nn.Conv1d, nn.Conv2d):
        with pytest.raises(ValueError, match=r"^padding='full' must be a size, 'same' or 'valid'"):
            layer(1, 1, 3, padding="full")


async def test_the_cures_for_pytorchs_names_compute_the_same(s, x):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs, indices = torch.arange(6, dtype=torch.float32).reshape(2, 3), np.array([[1], [2]])
    i = await s.put(indices)
    total = x.max() + asc.log(asc.exp(x - x.max()).sum())
    assert await total.item() == pytest.approx(torch.logsumexp(theirs, (0, 1)).item())
    taken = await asc.take_along_axis(x, i, axis=1)
    np.testing.assert_array_equal(taken, theirs.gather(1, torch.from_numpy(indices)))
    chosen = await asc.take(x, i[:1, 0], axis=1)
    np.testing.assert_array_equal(chosen, theirs.index_select(1, torch.tensor([1])))


async def test_a_mask_of_padding_is_pytorchs_key_padding_mask(s):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(0)
    values, pad = rng.normal(size=(2, 5, 8)), np.arange(5) >= np.array([[3], [5]])
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    ours = nn.MultiheadAttention(8, 2, dtype=np.float64)
    ours.load_state_dict({name: await s.put(value) for name, value in theirs.state_dict().items()})
    given = torch.from_numpy(values)
    expected, _ = theirs(given, given, given, key_padding_mask=torch.from_numpy(pad))
    mask = await s.put(pad)
    y = ours(await s.put(values), attn_mask=mask[:, None, None, :])
    np.testing.assert_allclose(await y, expected.detach().numpy(), rtol=1e-12, atol=1e-12)


async def test_a_size_that_is_called_says_what_to_write(s):
    t = await s.put(np.ones((2, 3)))
    assert (t.size, json.dumps(t.size), isinstance(t.size, int)) == (6, "6", True)
    for call, cure in [(lambda: t.size(0), r"t\.shape\[0\]"), (lambda: t.size(), r"t\.shape`")]:
        with pytest.raises(TypeError, match=f"as NumPy's: use `{cure}"):
            call()
