"""What Dask's users see of `asyncsched.cluster.get`: the same as of Dask's threads."""

from __future__ import annotations

import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.callbacks import Callback
from dask.diagnostics import Profiler, ProgressBar
from dask.order import order
from dask.task_spec import Task, TaskRef
from dask.utils_test import GetFunctionTestMixin, add, inc

import asyncsched as asc
from asyncsched import cluster
from tests.processes import fresh
from tests.runtime.test_interruptions import interrupted
from tests.waiting import fail, held

pytestmark = pytest.mark.usefixtures("kept")


class TestDasksOwn(GetFunctionTestMixin):
    get = staticmethod(cluster.get)


@pytest.fixture
def public(monkeypatch):
    """Dask without what is used of its private names."""
    monkeypatch.delattr("dask._task_spec.convert_legacy_graph")


@pytest.mark.usefixtures("public")
class TestDasksOwnByPublicNames(GetFunctionTestMixin):
    get = staticmethod(cluster.get)

    def test_tuples_of_all_kinds(self):
        graph = {
            ("x", 0): 1,
            ("x", 1): (inc, ("x", 0)),
            "same": ("x", 1),
            "nested": (sum, [(inc, "same"), ("x", 1), 7]),
            "list": ["same", 5, ("x", 0)],
            "data": ["nothing", 5],
            "both": (add, "nested", "node"),
            "node": Task("node", inc, TaskRef("same")),
        }
        assert cluster.get(graph, list(graph)) == (1, 2, 2, 12, [2, 5, 1], ["nothing", 5], 15, 3)
        with pytest.raises(LookupError):
            cluster.get({"a": 1, "b": (fail, "a")}, "b")


@pytest.mark.parametrize("names", ["private", "public"])
def test_any_collection_is_computed(names, request):
    if names == "public":
        request.getfixturevalue(names)

    x = np.random.default_rng(0).random((60, 60))
    lazy = da.from_array(x, chunks=(20, 30))
    with dask.config.set(scheduler=cluster.get):
        mean, total = dask.compute((lazy + 1).mean(axis=0), lazy.T.dot(lazy).sum())
        assert np.allclose(mean, (x + 1).mean(axis=0))
        assert np.isclose(total, (x.T @ x).sum())
        assert dask.delayed(sum)([dask.delayed(inc)(i) for i in range(10)]).compute() == 55
        kept_there = lazy.persist()
        assert np.array_equal(kept_there.compute(), x)
        frame = xr.Dataset({"a": (("x", "y"), lazy)})
        assert np.allclose(frame.a.std("x").compute(), x.std(axis=0))
    assert cluster.statistics().tasks_completed > 20


def test_what_functions_return_is_handed_on_as_it_is():
    made: list[Any] = []

    def make() -> Any:
        made.extend((np.zeros(3), [1, 2]))
        return made[0]

    def write(a: Any) -> Any:
        a += 1  # as Dask's threads allow
        return a

    got, same = cluster.get({"a": (make,), "b": (write, "a"), "c": (lambda b: made[1], "b")}, ["b", "c"])
    assert got is made[0]
    assert same is made[1]
    assert got.tolist() == [1.0] * 3
    assert (da.ones((4, 4), chunks=2) + 1).compute(scheduler=cluster.get).flags.writeable


def test_what_is_missing_is_told():
    with pytest.raises(KeyError, match="nothing"):
        cluster.get({"a": 1}, [["nothing"], "a"])
    with pytest.raises(ValueError, match="Missing dependency 'b' for 'a'"):
        cluster.get({"a": Task("a", inc, TaskRef("b"))}, "a")


def test_it_runs_in_the_callers_context():
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        cluster.get({"a": (np.divide, np.ones(3), np.zeros(3))}, "a")


def test_tasks_run_in_dasks_order():
    ran: list[Any] = []

    def note(key: Any, *_: Any) -> None:
        ran.append(key)

    graph: dict[Any, Any] = {("root", i): (note, ("root", i)) for i in range(40)}
    graph |= {("pair", i): (note, ("pair", i), ("root", 2 * i), ("root", 2 * i + 1)) for i in range(20)}
    graph |= {("end", 0): (note, ("end", 0), [("pair", i) for i in range(20)])}
    for key, (fn, _, *others) in graph.items():
        graph[key] = (lambda *others, key=key, fn=fn: fn(key), *others)
    with cluster.using(streams=1):
        cluster.get(graph, ("end", 0))
    assert ran == sorted(graph, key=order(graph).__getitem__)


@pytest.mark.parametrize(("quick", "least", "most"), [(1.0, 1, 200), (0.0, 400, 400)])
def test_quick_tasks_are_run_together(quick, least, most, monkeypatch):
    monkeypatch.setattr("asyncsched.cluster.graph._QUICK", quick)
    graph: dict[Any, Any] = {("x", i): (inc, i) for i in range(200)}
    graph |= {("y", i): (add, ("x", i), ("y", i - 1) if i else 0) for i in range(200)}
    with cluster.using(streams=2):
        found = cluster.get(graph, list(graph))
        told = cluster.statistics()
    assert list(found) == [*range(1, 201), *(sum(range(i + 2)) for i in range(200))]
    assert least <= told.tasks_completed <= most
    assert told.bytes_retained == 0


def test_one_that_fails_among_quick_ones_is_raised(monkeypatch):
    monkeypatch.setattr("asyncsched.cluster.graph._QUICK", 1.0)
    ran: list[int] = []

    def step(i: int, before: int) -> int:
        ran.append(i)
        return before + 1 // (150 - i)

    graph = {("s", i): (step, i, ("s", i - 1) if i else 0) for i in range(200)}
    with cluster.using(streams=2):
        with pytest.raises(ZeroDivisionError):
            cluster.get(graph, ("s", 199))
        assert ran == list(range(151))
        found = cluster.statistics()
        assert (found.tasks_pending, found.tasks_in_flight, found.bytes_retained) == (0, 0, 0)


def test_results_are_freed_with_their_last_reader():
    alive: list[weakref.ref[Any]] = []
    seen: list[int] = []

    def step(_: Any = None) -> Any:
        seen.append(sum(ref() is not None for ref in alive))
        a = np.ones(1000)
        alive.append(weakref.ref(a))
        return a

    graph = {"x0": (step,)} | {f"x{i}": (step, f"x{i - 1}") for i in range(1, 100)}
    with cluster.using(streams=1):
        cluster.get(graph, "x99")
        assert cluster.statistics().bytes_retained == 0
    assert max(seen) == 1  # the one that is read


@pytest.mark.parametrize("streams", [1, 2])
def test_errors_are_what_the_function_raised(streams):
    error, ran = LookupError("broken"), []

    def broken() -> None:
        raise error

    graph: dict[str, Any] = {"a": (broken,), "b": (inc, "a")}
    graph |= {"late0": (lambda b: ran.append(b), "b")} | {
        f"late{i}": (ran.append, f"late{i - 1}") for i in range(1, 99)
    }
    with cluster.using(streams=streams):
        with pytest.raises(LookupError, match="broken") as raised:
            cluster.get(graph, "late98")
        assert raised.value is error
        assert "broken" in [entry.name for entry in raised.traceback]
        assert not ran
        assert cluster.get({"a": (inc, 1)}, "a") == 2  # nothing is left behind
        found = cluster.statistics()
        assert found.tasks_failed or found.tasks_cancelled
        assert (found.tasks_pending, found.tasks_in_flight, found.bytes_retained) == (0, 0, 0)


def test_a_keyboard_interrupt_cancels_what_has_not_begun():
    gate, ran = threading.Event(), []

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        held(gate)

    graph = {"first": (interrupt,)} | {f"x{i}": (ran.append, "first") for i in range(200)}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with cluster.using(streams=1):
            with pytest.raises(KeyboardInterrupt):
                cluster.get(graph, [f"x{i}" for i in range(200)])
            gate.set()
            assert cluster.get({"a": (inc, 1)}, "a") == 2
    finally:
        signal.signal(signal.SIGINT, before)
    assert not ran


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a graph that is dropped then
@pytest.mark.parametrize("watched", [False, True])
def test_a_call_that_a_signal_interrupts_is_lost_alone(watched):
    def program() -> None:
        told: list[Any] = []
        watch = [(None, None, lambda *event: told.append(event[0]), None, None)] if watched else None
        assert cluster.get({"a": (inc, 1), "b": (add, "a", "a")}, "b", callbacks=watch) == 4
        assert told == (["a", "b"] if watched else [])

    program()  # opens what is kept
    for number in count():
        came_so_far = interrupted(number, program)
        program()  # others are answered
        if not came_so_far:
            break
    assert number > 100


def test_a_graph_may_be_computed_within_a_task():
    def nested(n: int) -> int:
        return n and 1 + cluster.get({"a": (nested, n - 1)}, "a")

    with cluster.using(streams=1, max_ops=1):
        assert cluster.get({"a": (nested, 3)}, "a") == 3
        x = da.arange(8, chunks=2).map_blocks(lambda b: b + da.ones(4, chunks=2).sum().compute(scheduler=cluster.get))
        assert x.sum().compute(scheduler=cluster.get) == 28 + 8 * 4


def test_several_threads_compute_at_once():
    def work(i: int) -> float:
        return (da.ones((40, 40), chunks=10) * i).sum().compute(scheduler=cluster.get)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(24))) == [1600.0 * i for i in range(24)]
    assert [t.name for t in threading.enumerate()].count("asyncsched cluster") == 1


def test_callbacks_are_told_on_the_callers_thread(capsys):
    told: list[Any] = []

    class Tell(Callback):
        def _start(self, dsk):
            told.append("start")

        def _start_state(self, dsk, state):
            told.append(sorted(state["ready"]))

        def _pretask(self, key, dsk, state):
            assert key in state["running"]
            told.append(("before", key, threading.current_thread() is threading.main_thread()))

        def _posttask(self, key, result, dsk, state, worker):
            assert key in state["finished"]
            told.append(("after", key, result))

        def _finish(self, dsk, state, failed):
            told.append(failed)

    with Tell():
        assert cluster.get({"a": 1, "b": (inc, "a"), "c": "b"}, "c") == 2
    first = ["start", ["b"], ("before", "b", True), ("after", "b", 2)]
    assert told == [*first, ("before", "c", True), ("after", "c", 2), False]
    told.clear()
    with Tell(), pytest.raises(LookupError):
        cluster.get({"b": (fail,)}, "b")
    assert told == ["start", ["b"], ("before", "b", True), True]
    with Profiler() as profiler, ProgressBar():
        cluster.get({f"x{i}": (inc, i) for i in range(9)}, [f"x{i}" for i in range(9)])
    assert len(profiler.results) == 9
    assert "100% Completed" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_child_of_a_fork_starts_its_own():
    code = """
import asyncio, os, warnings, asyncsched as asc
from asyncsched import cluster
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on
graph = {"a": (sum, [1, 2])}
print(cluster.get(graph, "a"), flush=True)

def child(compute):
    pid = os.fork()
    if not pid:
        try:
            print(compute(), flush=True)
        except asc.SchedulerClosed as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)

child(lambda: cluster.get(graph, "a"))

async def main():
    async with asc.Scheduler("cpu"):
        await asyncio.to_thread(child, lambda: cluster.get(graph, "a"))
asyncio.run(main())
"""
    first, second, third = fresh(code).splitlines()
    assert (first, second) == ("3", "3")
    assert "does not survive a fork" in third


def test_nothing_of_dask_is_imported_before_it_is_used():
    code = (
        "import sys, asyncsched.cluster as c; print('dask' in sys.modules, dir(c)); sys.modules['dask'] = None; c.get"
    )
    found = fresh(code)
    assert found.startswith(
        "False ['CardOutOfMemory', 'DaskDevice', 'ResultLost', '__doc__', 'get', 'statistics', 'using']\n"
    )
    assert 'asyncsched.cluster.get needs the package dask: pip install "asyncsched[cluster]"' in found
    with pytest.raises(AttributeError, match="no attribute 'got'"):
        cluster.got  # noqa: B018


def test_limits_are_set_and_come_back():
    with cluster.using(streams=3, max_ops=5, max_bytes="1 MiB"):
        assert cluster.statistics().max_bytes == 2**20
    assert cluster.statistics().max_bytes != 2**20
    with pytest.raises(TypeError, match="max_ops"):
        cluster.using(max_ops="many")
    with pytest.raises(asc.AsyncSchedError):
        cluster.get({"a": (cluster.using,)}, "a")
