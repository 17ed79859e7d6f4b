"""The namespace for code that cannot `await`: where it blocks, where it refuses to, and how it ends."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import itertools
import os
import pickle
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import _instead
from asyncsched import array_api as xp
from asyncsched.array_api import array
from asyncsched.array_api.array import kept
from asyncsched.tensors import functions
from tests.processes import fresh
from tests.runtime.test_interruptions import interrupted
from tests.waiting import held

ROOT = np.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.fixture(autouse=True)
def closed():
    """Each test begins and ends with no background scheduler."""
    yield
    kept.replace({"device": "cpu"})


def test_arrays_are_a_class_of_their_own():
    x = xp.asarray([[1, 2], [3, 4]])
    assert type(x) is xp.Array
    assert not isinstance(x, asc.Tensor)
    assert not hasattr(x, "__await__")
    assert x.__array_namespace__() is x.__array_namespace__(api_version="2025.12") is xp
    with pytest.raises(ValueError, match=r"2019.12 is not known"):
        x.__array_namespace__(api_version="2019.12")
    assert (x.shape, x.dtype, x.ndim, x.size, x.device, x.nbytes) == ((2, 2), np.int64, 2, 4, "cpu", 32)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


def test_a_method_of_numpys_names_the_function():
    x = xp.asarray([1.0])
    for name in ("sum", "astype", "reshape", "all", "exp"):
        with pytest.raises(
            AttributeError, match=rf"^an Array has no attribute '{name}': use `xp\.{name}\(x\)`: functions"
        ):
            getattr(x, name)
    for name, cure in _instead.ARRAY.items():
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': use {re.escape(cure)}$"):
            getattr(x, name)
    with pytest.raises(AttributeError, match="has no attribute 'array': `xp.asarray"):
        xp.array  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute '_whatever'$"):
        x._whatever  # noqa: B018


def test_values_are_waited_for():
    x = xp.asarray([1.0, 2.0, 3.0])
    total = xp.sum(x)
    assert (float(total), int(total), complex(total), bool(total), len(x)) == (6.0, 6, 6 + 0j, True, 3)
    assert [float(part) for part in x] == [1.0, 2.0, 3.0]
    assert np.asarray(x).tolist() == [1.0, 2.0, 3.0]
    assert list(range(xp.asarray(3)))[-1] == 2
    assert repr(x) == f"{x}" == "Array([1., 2., 3.], dtype=float64, device=cpu)"
    assert f"{total:.2f} {x[1]:>4} {total:05}" == "6.00  2.0 006.0"
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{x:.2f}"
    with pytest.raises(TypeError, match=r"only an array of one element can become bool"):
        bool(x)
    with pytest.raises(TypeError):
        range(xp.asarray(1.5))
    with pytest.raises(TypeError, match="without axes"):
        len(total)


def test_lengths_that_depend_on_data_are_known():
    x = xp.asarray([3, 1, 3])
    assert xp.unique_values(x).shape == (2,)
    assert len(x[x > 2]) == 2
    assert xp.nonzero(x > 2)[0].shape == (2,)
    assert xp.unstack(x[x > 2])[0].shape == ()
    assert xp.repeat(x, x).shape == (7,)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float32", "float64", "complex128"])
def test_unique_values_are_in_order(dtype):
    """Alone among the functions, it does not give what NumPy's gives, which is in no order."""
    a = np.random.default_rng(0).integers(-3, 9, (40, 5)).astype(dtype)
    if dtype[0] in "fc":
        a[::7] = np.nan
    x, like = xp.asarray(a), np.unique(a, equal_nan=False)
    found = [xp.unique_values(x), xp.unique_counts(x).values, xp.unique_inverse(x).values, xp.unique_all(x).values]
    for values in found:
        np.testing.assert_array_equal(np.asarray(values), like)
    values, indices, inverse, counts = map(np.asarray, xp.unique_all(x))
    np.testing.assert_array_equal(a.reshape(-1)[indices], values)
    np.testing.assert_array_equal(values[inverse], a)
    np.testing.assert_array_equal(counts, np.unique(a, return_counts=True, equal_nan=False)[1])


def test_arrays_without_axes_are_numbers_where_those_are_wanted():
    one, four, x = xp.asarray(1), xp.asarray(4), xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    pairs = [
        (xp.arange(one, four), np.arange(1, 4)), (xp.zeros((four, 2)), np.zeros((4, 2))), (xp.eye(four), np.eye(4)),
        (xp.sum(x, axis=one), np.array([3.0, 7.0])), (xp.linspace(one * 0.0, four, four + 1), np.linspace(0.0, 4, 5)),
        (xp.reshape(x, (four,)), np.arange(1.0, 5)), (xp.roll(x, one), np.array([[4.0, 1.0], [2.0, 3.0]])),
        (xp.full((2,), one), np.array([1, 1])),
    ]  # fmt: skip
    for found, like in pairs:
        np.testing.assert_array_equal(np.asarray(found), like, strict=True)
    with pytest.raises(TypeError, match="arange takes a number where an array with axes was given"):
        xp.arange(x, one)


def test_operators_and_assignment():
    x = xp.asarray([1.0, 2.0])
    y = x
    x += 1
    assert y is x
    x[0] = 7
    assert np.asarray(y).tolist() == [7.0, 3.0]
    assert np.asarray(2 - x).tolist() == [-5.0, -1.0]
    assert type(np.float64(2) * x) is xp.Array
    assert np.asarray(x[xp.asarray(0) : xp.asarray(1)]).tolist() == [7.0]
    z = xp.asarray(ROOT)
    z[np.array([1, 0]), 0] = xp.asarray([8.0, 9.0])
    assert np.asarray(z[np.array([True, False])]).tolist() == [[9.0, 2.0]]  # as scikit-learn's searches index
    for truth in (True, np.bool(False)):  # NumPy's masks without axes, as scipy.ndimage indexes
        like = ROOT.copy()
        z = xp.asarray(like)
        np.testing.assert_array_equal(np.asarray(z[truth]), like[truth])
        np.testing.assert_array_equal(np.asarray(z[truth, 0]), like[truth, 0])
        z[truth] = like[truth] = 5
        np.testing.assert_array_equal(np.asarray(z), like)
    with pytest.raises(TypeError, match="in place"):
        x *= xp.asarray([1j, 2])
    with pytest.raises(ValueError, match="broadcast"):
        x + xp.ones(3)


def test_from_other_libraries_and_to_them():
    a = np.arange(3.0)
    x = xp.from_dlpack(a)
    a[0] = 9
    assert np.from_dlpack(x).tolist() == [0.0, 1.0, 2.0]
    assert xp.asarray(x) is x
    assert xp.asarray(x, copy=True) is not x
    assert xp.from_dlpack(x, copy=False) is x
    assert x.to_device("cpu").device == "cpu"
    with pytest.raises(ValueError, match="copy=False"):
        xp.asarray(a, copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(x, copy=False)
    assert xp.asarray([xp.asarray(1, dtype=xp.float32), 2]).dtype == np.float32


class WithoutVersions:
    """A library from before DLPack 1.0, which knows no read-only arrays."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_):
        return self._capsule

    def __dlpack_device__(self):
        return 1, 0


class WithVersions:
    """NumPy has no `copy=` here before 2.1."""

    def __init__(self, x):
        self._x = x

    def __dlpack__(self, **options):
        return self._x.__dlpack__(**{**options, "copy": False})

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: xp.asarray(np.arange(3.0)), lambda: xp.asarray(np.arange(3.0)) + 0, lambda: xp.arange(3.0)[:],
        lambda: xp.asarray(np.arange(30_000.0)), lambda: xp.asarray(np.arange(30_000.0)) * 1, lambda: xp.asarray(2.0),
        lambda: xp.reshape(xp.arange(6.0), (2, 3))[:, ::-1], lambda: xp.zeros((0, 2)),
    ],
)  # fmt: skip
def test_without_a_copy_a_library_may_write_to_it(make, awaited):
    x = make()
    before = np.asarray(x)
    if awaited:
        shared = np.from_dlpack(x)
        assert not shared.flags.writeable
    unversioned = np.from_dlpack(WithoutVersions(x.__dlpack__(copy=False)))
    found = np.from_dlpack(WithVersions(x))
    np.testing.assert_array_equal(found, before)
    assert found.flags.writeable
    found[...] = 7
    np.testing.assert_array_equal(unversioned, np.full_like(before, 7))
    np.testing.assert_array_equal(np.asarray(x), np.full_like(before, 7))
    if awaited:
        assert not shared.flags.writeable
    np.testing.assert_array_equal(np.from_dlpack(WithoutVersions(x.__dlpack__())), np.asarray(x))


def test_numpys_functions_give_its_own_arrays():
    a = np.array([[1.0, 4.0], [9.0, 16.0]])
    x = xp.asarray(a)
    pairs = [
        (np.ones(2) + x, 1 + a), (np.sqrt(x), np.sqrt(a)), (np.add(x, 1), a + 1),
        (np.add.reduce(x, axis=0), a.sum(0)), (np.sum(x), a.sum()), (np.concatenate([x, x]), np.concatenate([a, a])),
        (np.multiply(a, 2, where=x > 3, out=np.zeros((2, 2))), np.where(a > 3, 2 * a, 0)), (np.modf(x)[1], a),
        (np.mean(x, axis=1), a.mean(1)), (np.hypot(np.float64(3), x), np.hypot(3, a)),
    ]  # fmt: skip
    for found, like in pairs:
        assert type(found) is type(like)
        np.testing.assert_array_equal(found, like)
    a += x
    assert a[0, 0] == 2
    for found, like in ((np.float64(2) * x, 2 * np.asarray(x)), (np.bool(True) & (x > 3), np.asarray(x) > 3)):
        assert type(found) is xp.Array
        np.testing.assert_array_equal(np.asarray(found), like)
    with pytest.raises(TypeError, match=r"np.add cannot write to an array of the scheduler: use `x\[...\] = ...`"):
        np.add(a, a, out=x)
    with pytest.raises(TypeError, match=r"np.add cannot write to an array of the scheduler: use `x\[...\] = ...`"):
        np.add.at(x, [0], 1.0)


def test_what_numpy_makes_of_them_is_a_copy_that_can_be_written_to():
    x = xp.asarray(ROOT)
    for found in (np.asarray(x), np.asarray(x[0]), np.asarray(x, dtype=np.float32), np.array(x.T), np.zeros(2) + x):
        found[...] = 5
    np.testing.assert_array_equal(np.asarray(x), ROOT)


def test_copies_and_pickles_are_arrays_of_their_own():
    x = xp.asarray([1.0, 2.0])
    copies = [copy.copy(x), copy.deepcopy(x), copy.deepcopy({"x": [x]})["x"][0], pickle.loads(pickle.dumps(x))]
    x[0] = 5
    for found in copies:
        assert type(found) is xp.Array
        assert np.asarray(found).tolist() == [1.0, 2.0]


def refused(call):
    """The message of the error that a call raises, or what it returns does when it is read."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        np.asarray(call())
    return str(caught.value)


def test_no_message_says_await():
    x, i, m = xp.asarray([1.0, 2.0]), xp.asarray([7]), xp.asarray([True, False, True])
    with xp.using("cpu", streams=1):
        y, ndarray = xp.ones(2), np.ones(2)
        calls = {
            "`xp.asarray(a)` makes it an array": [
                lambda: xp.add(y, ndarray), lambda: y + ndarray, lambda: xp.where(y > 0, [1], y),
                lambda: y - [1, 2], lambda: (1.0, 2.0) * y, lambda: y.__iadd__([1, 2]), lambda: y == [1, 2],
                lambda: y["a"], lambda: y.__setitem__(0, [1.0]), lambda: xp.full((2,), [1]), lambda: xp.add([1], 1),
            ],
            "brings one to that in use": [lambda: x + y],
            "brings it": [lambda: x + 1, lambda: x[0], lambda: x.__setitem__(0, 1)],
            "use an Array": [lambda: y.__setitem__(0, xp), lambda: y.__setitem__(0, None), lambda: xp.add(y, "a")],
            "index arrays must be": [lambda: y[y]],
            "integer or boolean dtype": [lambda: y[ndarray], lambda: y.__setitem__(ndarray, 1)],
            "": [
                lambda: x[i], lambda: x[m], lambda: xp.reshape(y, (3,)), lambda: float(y), lambda: bool(y),
                lambda: xp.zeros(2, device="cuda:9"), lambda: xp.asarray("a"), lambda: xp.asarray([[1], [1, 2]]),
                lambda: xp.from_dlpack(3), lambda: xp.linalg.inv(xp.zeros((2, 2))), lambda: y + xp.ones(3),
                lambda: xp.sum(y, axis=3), lambda: xp.sum(y, dim=3), lambda: y.sum, lambda: y[xp.asarray([9])],
                lambda: xp.astype(y, "O"), lambda: xp.asarray(np.ma.array([1])), lambda: hash(y), lambda: range(y),
                lambda: xp.unstack(y, axis=4), lambda: xp.repeat(y, 1.5), lambda: y.to_device("tpu"),
                lambda: xp.using(max_ops="many"), lambda: xp.asarray({"a": 1}), lambda: np.add(1, 1, out=y),
            ],
        }  # fmt: skip
        for cure, several in calls.items():
            for call in several:
                assert cure in (message := refused(call))
                assert "await" not in message
        failed = xp.linalg.inv(xp.zeros((2, 2)))
        with pytest.raises(ExceptionGroup, match="nobody has read their results"):
            kept.replace({"device": "cpu"})
        del failed


async def test_nor_do_those_on_a_thread_with_a_loop(s):
    x, t = await asyncio.to_thread(xp.ones, 2), await s.put([1.0])
    for call in (lambda: np.asarray(x), lambda: xp.asarray(t), lambda: xp.ones(2), lambda: copy.copy(x), lambda: x[0]):
        assert "await" not in refused(call)
    for call in (xp.ones, pickle.dumps):
        assert "pass arrays as arguments" in await s.call(refused, functools.partial(call, x))
    assert "`xp.asarray(np.asarray(t))` copies it" in await asyncio.to_thread(refused, lambda: xp.from_dlpack(t))
    await asyncio.to_thread(kept.replace, {"device": "cpu"})


WRITES = r"use `c\[...\] = xp.{}\(...\)`, which writes into an existing tensor$"
WRONG_ARGUMENTS = [
    (lambda x: xp.add(x, x, out=x), WRITES.format("add")),
    (lambda x: xp.add(x, x, x), WRITES.format("add")),
    (lambda x: xp.exp(x, x), WRITES.format("exp")),
    (lambda x: xp.sum(x, out=x), WRITES.format("sum")),
    (lambda x: xp.matmul(x, x, out=x), WRITES.format("matmul")),
    (lambda x: xp.concat([x, x], out=x), WRITES.format("concat")),
    (lambda x: xp.linalg.inv(x, out=x), WRITES.format("linalg.inv")),
    (lambda x: xp.fft.fft(x, out=x), WRITES.format("fft.fft")),
    (lambda x: xp.unique_values(x, out=x), WRITES.format("unique_values")),
    (lambda x: xp.add(x, x, where=x > 1), r"`xp.where\(mask, a, b\)` on the operands or on the result of xp.add$"),
    (lambda x: xp.mean(x, where=x > 1), r"`xp.where\(mask, a, b\)` on the operands or on the result of xp.mean$"),
    (lambda x: xp.add(x, x, dtype=xp.float32), r"`xp.astype\(x, dtype\)` on the operands or on the result of xp.add$"),
    (lambda x: xp.mean(x, dtype=xp.float32), r"`xp.astype\(x, dtype\)` on the operands or on the result of xp.mean$"),
    (lambda x: xp.add(x, x, casting="unsafe"), r"`xp.astype\(x, dtype\)` on the operands, which always converts"),
    (lambda x: xp.exp(x, subok=True), "there is nothing to choose: leave it out$"),
    (lambda x: xp.reshape(x, (4,), order="F"), r"`xp.permute_dims\(x, axes\)` first, to put elements in another"),
    (lambda x: xp.asarray(x, order="C"), "else leave it out$"),
    (lambda x: xp.asarray(x, ndmin=2), "leave it out$"),
    (lambda x: xp.prod(x, initial=2.0), r"`initial \* xp.prod\(x\)`"),
    (lambda x: xp.mean(x, weights=x), r"`xp.sum\(w \* x\) / xp.sum\(w\)`$"),
    (lambda x: xp.round(x, decimals=2), r"`xp.round\(x \* 10\*\*n\) / 10\*\*n`$"),
    (lambda x: xp.linspace(0, 1, 5, retstep=True), r"`x\[1\] - x\[0\]`, which is the step$"),
    (lambda x: xp.take(x, x, mode="wrap"), r"`xp.take\(x, indices % n\)`, which wraps around"),
    (lambda x: xp.meshgrid(x[0], x[0], sparse=True), r"`xp.expand_dims\(x, axis=...\)`, and broadcasting$"),
    (lambda x: xp.linalg.svd(x, compute_uv=False), r"`xp.linalg.svdvals\(x\)`$"),
    (lambda x: xp.linalg.trace(x, axis1=0, axis2=1), r"`xp.moveaxis\(x, \(i, j\), \(-2, -1\)\)` first: xp.linalg"),
    (lambda x: xp.unique_values(x, return_counts=True), r"`xp.unique_all\(x\)`, `unique_counts`"),
    (lambda x: xp.sort(x, kind="stable"), "argument 'kind': use `stable=`$"),
    (lambda x: xp.clip(x, a_min=1), "argument 'a_min': use `min=`$"),
    (lambda x: xp.sum(x, dim=1), "argument 'dim': use `axis=`$"),
    (lambda x: xp.ones(2, 3), r"use `xp.ones\(\(2, 3\)\)`$"),
    (lambda x: xp.concat(x, x), r"use `xp.concat\(\[a, b\]\)`$"),
    (lambda x: xp.add(x, x, nonsense=1), "add.. got an unexpected keyword argument 'nonsense'$"),
    (lambda x: xp.add(x), "missing 1 required positional argument: 'x2'$"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "told"), WRONG_ARGUMENTS)
def test_an_argument_that_a_function_has_not_names_what_to_write(call, told):
    x = xp.asarray(ROOT)
    with pytest.raises(TypeError, match=told):
        call(x)
    np.testing.assert_array_equal(np.asarray(x), ROOT)


def test_what_an_operation_raises_comes_where_it_is_read():
    x = xp.linalg.inv(xp.zeros((2, 2)))
    with pytest.raises(np.linalg.LinAlgError):
        np.asarray(x)
    assert repr(x) == "Array(shape=(2, 2), dtype=float64, device=cpu, failed: LinAlgError)"


async def test_on_a_thread_with_a_running_loop_nothing_blocks():
    def work() -> float:
        return float(xp.sum(xp.ones(3)))

    for call in (work, lambda: xp.asarray([1]), lambda: xp.using(max_ops=3)):
        with pytest.raises(
            asc.ImplicitBarrierError, match=r"on another thread, for example by `asyncio.to_thread\(fn\)`"
        ):
            call()
    assert await asyncio.to_thread(work) == 3.0
    x = await asyncio.to_thread(xp.arange, 3)
    for call in (lambda: bool(x), lambda: x + 1, lambda: x[0], lambda: np.asarray(x), lambda: xp.sum(x)):
        with pytest.raises(asc.ImplicitBarrierError):
            call()
    assert "Array(shape=(3,), dtype=int64" in repr(x)
    await asyncio.to_thread(kept.replace, {"device": "cpu"})


async def test_nor_in_a_task(s):
    with pytest.raises(asc.ImplicitBarrierError, match="pass arrays as arguments"):
        await s.call(lambda: xp.asarray([1]))


async def test_it_is_outside_of_its_callers_scope(s):
    """`asyncio.to_thread` hands on the ambient scheduler, which is another loop's."""
    async with s.scope():
        assert await asyncio.to_thread(lambda: float(xp.sum(xp.arange(4)))) == 6.0
    await asyncio.to_thread(kept.replace, {"device": "cpu"})


def test_limits_are_set_and_come_back():
    x = xp.ones(10)
    with xp.using("cpu", max_bytes=1000):
        with pytest.raises(asc.TaskTooLarge):
            xp.asarray(np.ones(1000))
        assert np.asarray(x).tolist() == [1.0] * 10  # of the scheduler before, which is closed
        with pytest.raises(ValueError, match="different schedulers"):
            x + xp.ones(10)
        with pytest.raises(asc.SchedulerClosed, match=r"`xp.asarray\(np.asarray\(x\)\)` brings it"):
            xp.sum(x)
        assert float(xp.sum(xp.asarray(np.asarray(x)))) == 10.0
    assert xp.asarray(np.ones(1000)).shape == (1000,)
    with pytest.raises(TypeError, match="max_ops"):
        xp.using("cpu", max_ops="many")
    assert float(xp.sum(xp.ones(2))) == 2.0


def test_a_full_backlog_is_waited_for():
    with xp.using("cpu", max_ops=1, max_pending=4):
        x = xp.ones((100, 100))
        for _ in range(50):
            x = x * 1.5 - x
        assert float(x[0, 0]) == 0.5**50


def test_several_threads_share_it():
    def work(seed: int) -> float:
        x = xp.asarray(np.full(100, float(seed)))
        return float(xp.sum(x * 2))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == [200.0 * i for i in range(40)]
    assert [t.name for t in threading.enumerate()].count("asyncsched array_api") == 1


def test_closing_waits_for_what_was_submitted():
    started, gate = threading.Event(), threading.Event()
    scheduler = kept.get().scheduler

    def body() -> None:
        started.set()
        held(gate)

    kept.get().issue(scheduler.submit_nowait, body)
    assert started.wait(60)
    closing = threading.Thread(target=kept.replace, args=({},))
    closing.start()
    gate.set()
    closing.join(60)
    assert not closing.is_alive()
    assert "closed" in repr(scheduler)


def computes() -> None:
    assert float(xp.sum(xp.asarray(ROOT) @ xp.ones((2, 2)))) == 20.0


def opens_and_closes() -> None:
    with xp.using("cpu", max_ops=3):
        computes()


def reads() -> None:
    s = kept.get().scheduler
    task = kept.get().issue(s.submit_nowait, np.add, 1.0, 2.0, shape=(), dtype=float)
    assert float(task) == 3.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a coroutine that is dropped then
@pytest.mark.parametrize("program", [computes, opens_and_closes, reads])
def test_a_call_that_a_signal_interrupts_is_lost_alone(program, monkeypatch):
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:  # where Python itself may leave a lock held
        profile = sys.getprofile()
        sys.setprofile(None)
        started(thread)
        sys.setprofile(profile)

    monkeypatch.setattr(threading.Thread, "start", start)
    program()
    step = 7 if program is opens_and_closes else 1
    for number in itertools.count(0, step):
        came_so_far = interrupted(number, program)
        computes()  # others are answered
        if not came_so_far:
            break
    assert number > 20 * step
    in_a_thread = threading.Thread(target=computes)
    in_a_thread.start()
    in_a_thread.join()
    kept.replace({"device": "cpu"})
    names = [thread.name for thread in threading.enumerate()]
    while "asyncsched array_api" in names:  # one that is closing, since a signal interrupted the wait for it
        names = [thread.name for thread in threading.enumerate()]


def test_a_program_ends_by_itself():
    code = "from asyncsched import array_api as xp; x = xp.ones(3); print(float(xp.sum(x)))"
    assert fresh(code) == "3.0\n"
    unread = "from asyncsched import array_api as xp; y = xp.linalg.inv(xp.zeros((2, 2)))"
    assert "nobody has read their results" in fresh(unread)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_starts_its_own():
    code = """
import os, warnings
warnings.simplefilter("ignore")
from asyncsched import array_api as xp
x = xp.ones(3)
float(xp.sum(x))
if (pid := os.fork()) == 0:
    print(float(xp.sum(xp.arange(3.0))), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(float(xp.sum(x)))
"""
    assert fresh(code) == "3.0\n3.0\n"


FORKED_BESIDE_STREAMS = """
import asyncio, os, threading, warnings
import asyncsched as asc
from asyncsched import _instead
from asyncsched import array_api as xp
warnings.simplefilter("ignore")

def compute():
    print(float(xp.sum(xp.arange(3.0))), flush=True)

async def main():
    async with asc.Scheduler("cpu", streams=4) as s:
        if (pid := os.fork()) == 0:
            for _ in range(8):  # the system gives their numbers again
                thread = threading.Thread(target=compute)
                thread.start()
                thread.join()
            os._exit(0)
        await asyncio.to_thread(os.waitpid, pid, 0)

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_thread_of_a_forked_child_is_none_of_its_parents_streams():
    assert fresh(FORKED_BESIDE_STREAMS) == "3.0\n" * 8


def test_all_names_of_the_standard_are_there():
    for module, name in ((asc, ""), (asc.linalg, "linalg"), (asc.fft, "fft")):
        found = getattr(xp, name) if name else xp
        left_out = {"fft", "linalg", "random", "dot", "einsum"} if not name else set()
        names = asc.tensors.functions.__all__ if not name else module.__all__
        assert set(names) - left_out <= set(dir(found))
    assert xp.__array_api_version__ == "2025.12"
    info = xp.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.dtypes(kind="integral").keys() == info.dtypes(kind=("signed integer", "unsigned integer")).keys()
    assert xp.finfo(xp.float32).eps == float(np.finfo(np.float32).eps)


SQUARE = [[2.0, 1.0], [1.0, 3.0]]
ROW = [1.0, 2.0, 4.0]
# What is given where there is no keyword, by name of the parameter, and by name of the function. Lists become arrays.
OPERANDS = {
    "x": SQUARE, "x1": SQUARE, "x2": SQUARE, "arrays": (SQUARE, SQUARE), "condition": [True, False], "obj": SQUARE,
    "start": 1, "stop": 5, "n_rows": 3, "n": 4, "source": 0, "destination": 1, "repeats": 2, "repetitions": 2,
    "indices": [[0, 1]], "from_": np.float32, "to": np.float64, "type": np.float32, "dtype": np.float64,
}  # fmt: skip
OWN_OPERANDS = {
    **dict.fromkeys(("cross", "searchsorted"), (ROW, ROW)),
    **dict.fromkeys(("cumulative_prod", "cumulative_sum"), (ROW,)),
    **dict.fromkeys([name for name in xp.__all__ if name.startswith("bitwise")], (6, 2)),
    "bitwise_invert": (6,),
    "squeeze": ([ROW],),
}
OPTIONS = {
    "dtype": np.float64, "device": "cpu", "scheduler": None, "copy": True, "shape": (2, 2), "fill_value": 1.5, "k": 1,
    "axis": 0, "axes": (1, 0), "keepdims": True, "stop": 6, "step": 2, "num": 5, "endpoint": False, "indexing": "ij",
    "min": 1.5, "max": 2.5, "descending": True, "stable": True, "side": "right", "sorter": None, "invert": True,
    "include_initial": True, "n": 2, "prepend": None, "append": None, "correction": 1.0, "norm": "ortho", "s": (2, 2),
    "d": 0.5, "upper": True, "offset": 1, "ord": 1, "rtol": 1e-3, "mode": "complete", "full_matrices": False,
    "kind": "real floating", "shift": 1, "dx": 0.5, "edge_order": 2, "left": 0.0, "right": 9.0, "period": 360.0,
    "pad_width": 1, "window_shape": 2, **dict.fromkeys(("a", "array", "f", "fp", "v", "x", "xp", "y"), ROW),
}  # fmt: skip
OWN_OPTIONS = {"convolve": {"mode": "valid"}, "pad": {"mode": "edge"}, "sliding_window_view": {"axis": (0,)}}
OF_NUMPYS_OWN = {*functions.statistics.__all__, "argpartition", "topk"}  # with arguments of their own
FUNCTIONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (xp, xp.fft, xp.linalg)
    for name in module.__all__
    if inspect.isfunction(getattr(module, name)) and name not in OF_NUMPYS_OWN
}


def arrays(thing):
    if isinstance(thing, tuple):
        return tuple([arrays(part) for part in thing])
    return xp.asarray(thing) if isinstance(thing, list) else thing


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_takes_its_options_by_keyword(name):
    function, own = FUNCTIONS[name], OWN_OPERANDS.get(name.rpartition(".")[2])
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    operands = [arrays(thing) for thing in own or [OPERANDS[name] for name in needed]]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    options = {p.name: arrays((OPTIONS | OWN_OPTIONS.get(name.rpartition(".")[2], {}))[p.name]) for p in named}
    required = {p.name: options[p.name] for p in named if p.default is p.empty}
    for option in options.items():
        assert repr(function(*operands, **(required | dict([option]))))


def test_the_kind_of_an_arrays_dtype_is_asked_for_by_keyword():
    x = xp.asarray(SQUARE)
    assert xp.isdtype(x.dtype, kind="real floating")
    assert not xp.isdtype(dtype=x.dtype, kind=("integral", "bool"))
    assert xp.can_cast(x, xp.complex128)
    assert xp.result_type(x, xp.float32) == x.dtype


@pytest.mark.parametrize(("make", "asks"), [(lambda: xp.ones(3), 2), (lambda: xp.asarray(np.ones(3)), 1)])
def test_a_scheduler_that_another_thread_closes_meanwhile_lets_no_call_wait_for_ever(monkeypatch, make, asks):
    old, about_to_close, go_on = kept.get(), threading.Event(), threading.Event()
    close = old._loop.close

    def held_close():  # the loop has run its last callback
        about_to_close.set()
        assert go_on.wait(60)
        close()

    found = [old] * asks  # as if the call had begun before
    monkeypatch.setattr(old._loop, "close", held_close)
    monkeypatch.setattr(array, "background", lambda: found.pop() if found else kept.get())
    closing = threading.Thread(target=xp.using, args=("cpu",))
    closing.start()
    assert about_to_close.wait(60)
    try:
        assert float(xp.sum(make())) == 3
    finally:
        go_on.set()
        closing.join()


def test_an_array_of_a_scheduler_that_is_about_to_close_is_told_as_one_of_a_closed_scheduler():
    x, old = xp.ones(3), kept.get()
    kept._current = None  # as `using` does in another thread, before it closes the scheduler
    try:
        with pytest.raises(RuntimeError, match=r"closed, perhaps by `array_api.using`: `xp.asarray.np.asarray.x..`"):
            x + 1
    finally:
        old.close()
