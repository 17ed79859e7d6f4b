"""The CPU: its threads, its pool, and BLAS shared out between streams."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import asyncsched as asc
from asyncsched._core.model import Task
from asyncsched.devices import cpu
from asyncsched.devices.contract import Counter, Job
from asyncsched.devices.host import blas, slices
from asyncsched.devices.host import memory as host_memory
from asyncsched.devices.host.memory import Pool
from asyncsched.ops import cut
from asyncsched.ops.kernels.blocks import without_buffers
from tests.fake_cupy import Fake
from tests.ledger import engine_of, stands_still, value_of
from tests.processes import fresh
from tests.waiting import fail, held, turns

BLOCK = np.ones((200, 200))
CONTROLLER = ThreadpoolController().select(user_api="blas")


def threads() -> list[int]:
    """The BLAS libraries' thread counts. Asks the libraries alone, and reads no file."""
    return [lib.num_threads for lib in CONTROLLER.lib_controllers]


# -- how many streams -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("processors", "streams"), [(1, 1), (3, 3), (64, 8)])
async def test_there_is_a_stream_for_each_processor(
    monkeypatch: pytest.MonkeyPatch, processors: int, streams: int
) -> None:
    monkeypatch.setattr(cpu, "allowed_processors", lambda: processors)
    async with asc.Scheduler("cpu") as s:
        assert len(s.devices[0].streams) == streams
        x = await s.put(BLOCK)
        assert (await (x @ x))[0, 0] == 200


# -- slices -----------------------------------------------------------------------------------------------------------

TAKES_SLICES = sys.platform == "linux" and tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12)


@pytest.mark.skipif(not TAKES_SLICES, reason="only Linux, from 6.12 on, has slices of threads")
async def test_streams_have_the_longest_slices_and_the_niceness_that_they_had() -> None:
    before = slices.attributes()
    async with asc.Scheduler("cpu", streams=2) as s:
        found = [await s.call(slices.attributes) for _ in range(2)]
        assert [(one.slice, one.nice) for one in found] == [(slices.LONGEST, before.nice)] * 2
        started = await s.call(lambda: asyncio.run(asyncio.to_thread(slices.attributes)))
        assert started.slice == before.slice  # what a task starts has no long ones
        now = slices.attributes()
        assert (now.slice, now.nice) == (before.slice, before.nice)


@pytest.mark.parametrize("where", ["unknown machine", "refused"])
async def test_streams_run_where_slices_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(slices, "_CALLS", {} if where == "unknown machine" else {os.uname().machine: (-1, -1)})
    assert slices.attributes() is None
    async with asc.Scheduler("cpu", streams=1) as s:
        assert await s.call(slices.attributes) is None
        assert (await (await s.put(BLOCK) + 1))[0, 0] == 2


# -- BLAS -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Eight processors, so that there is something to share out."""
    monkeypatch.setattr(blas, "allowed_processors", lambda: 8)
    with CONTROLLER.limit(limits=8):
        before = threads()
        yield before
        assert threads() == before
        assert not blas.devices
        assert not blas.computing


async def test_one_stream_keeps_every_blas_thread(many: list[int]) -> None:
    async with asc.Scheduler("cpu", streams=1) as s:
        x = await s.put(BLOCK)
        running = s.submit_nowait(threads)
        await (x @ x)
        assert await running == threads() == many


async def test_streams_share_the_blas_threads_while_several_run(many: list[int]) -> None:
    gate = threading.Event()
    async with asc.Scheduler("cpu", streams=4) as s:
        x = await s.put(BLOCK)
        with asc.exact():
            y = x @ x  # alone, and with a stream's part all the same, lest its bits depend on that
        assert threads() == [2] * len(many)
        assert (await y)[0, 0] == 200
        running = s.submit_nowait(held, gate)
        assert (await (x @ x))[0, 0] == 200
        assert threads() == [2] * len(many)
        gate.set()
        await running
        assert threads() == many  # at rest they are anybody's
    gate.clear()
    with pytest.raises(KeyError):
        async with asc.Scheduler("cpu", streams=64) as s:
            x = await s.put(BLOCK)
            s.submit_nowait(held, gate)
            _ = x @ x
            assert threads() == [1] * len(many)
            gate.set()
            raise KeyError
    assert threads() == many


async def test_bits_of_products_do_not_depend_on_who_is_idle_nor_those_of_decompositions_inside_exact(
    many: list[int],
) -> None:
    async with asc.Scheduler("cpu", streams=4) as s:
        x = await s.put(np.eye(60, 100))
        for product in (asc.dot, partial(asc.tensordot, axes=1)):
            y = product(x, asc.matrix_transpose(x))
            assert threads() == [2] * len(many)
            await y
        for decompose in (asc.linalg.inv, asc.linalg.svd):
            _ = decompose(y)  # alone it has them all
            assert threads() == many
            await s.barrier()
            with asc.exact():
                _ = decompose(y)
            assert threads() == [2] * len(many)
            await s.barrier()


async def test_the_small_products_of_attention_have_one_streams_share_of_threads(many: list[int]) -> None:
    async with asc.Scheduler("cpu", streams=4) as s:
        x = await s.put(np.ones((2, 3, 50, 20), np.float32))
        assert threads() == many
        y = asc.nn.scaled_dot_product_attention(x, x, x)
        assert threads() == [2] * len(many)
        await y


async def test_a_lone_function_has_every_blas_thread_and_several_share_them(many: list[int]) -> None:
    gate = threading.Event()
    async with asc.Scheduler("cpu", streams=2) as s:
        x = await s.put(BLOCK)
        _ = x @ x
        await s.barrier()
        assert await s.call(threads) == many
        first = s.submit_nowait(held, gate)
        assert threads() == many
        assert await s.call(threads) == [4] * len(many)
        gate.set()
        await first
        y = asc.linalg.svdvals(x)
        assert threads() == many
        await y


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_schedulers_restore_the_threads_in_any_order(many: list[int], order: tuple[int, int]) -> None:
    gates = threading.Event(), threading.Event()
    schedulers = [asc.Scheduler("cpu", streams=2), asc.Scheduler("cpu", streams=4)]
    for s in schedulers:
        await s.__aenter__()
    first, second = [schedulers[place] for place in order]
    assert threads() == many  # both rest
    assert await first.call(threads) == many
    holding = [s.submit_nowait(held, gate) for s, gate in zip((first, second), gates, strict=True)]
    assert threads() == [2] * len(many)  # neither knows what the other is about to run
    gates[0].set()
    await holding[0]
    await first.aclose()
    assert threads() == many
    gates[1].set()
    await holding[1]
    await second.aclose()
    assert threads() == many


async def test_threads_are_restored_after_aclose_ran_out_of_time(many: list[int]) -> None:
    gate = threading.Event()
    s = asc.Scheduler("cpu", streams=2)
    async with s:
        s.submit_nowait(held, gate)
        with pytest.raises(TimeoutError):
            await s.aclose(0.01)
    gate.set()
    assert threads() == many


class Library:
    """A BLAS of eight threads; when the number is set, something comes in between."""

    internal_api, num_threads = "mkl", 8

    def __init__(self, between: Callable[[], object]) -> None:
        self._between: Callable[[], object] | None = between

    def set_num_threads(self, number: int) -> None:
        between, self._between = self._between, None
        if between is not None:
            between()
        self.num_threads = number


@pytest.mark.timeout(20)
def test_a_finaliser_that_closes_a_scheduler_in_the_middle_of_a_setting_waits_for_nothing_and_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Library(lambda: blas.unshare("abandoned"))
    monkeypatch.setattr(blas, "_found", [library])
    monkeypatch.setattr(blas, "_processors", 8)
    blas.share("abandoned", 4, [])
    blas.compute("abandoned", True)
    assert library.num_threads == 8
    assert not blas.devices


def test_a_loop_of_another_thread_sets_the_threads_too(many: list[int]) -> None:
    """Though this one has set them before, and lives: threadpoolctl would let no other."""
    found = []

    async def main() -> None:
        async with asc.Scheduler("cpu", streams=4) as s:
            gate = threading.Event()
            running = s.submit_nowait(held, gate)
            found.append(await s.call(threads))
            gate.set()
            await running
        found.append(threads())

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join(60)
    assert found == [[2] * len(many), many]


async def test_an_openblas_whose_function_has_another_name_is_set_by_threadpoolctl(
    monkeypatch: pytest.MonkeyPatch, many: list[int]
) -> None:
    monkeypatch.setattr(blas, "_OPENBLAS", [])
    async with asc.Scheduler("cpu", streams=4) as s:
        gate = threading.Event()
        running = s.submit_nowait(held, gate)
        assert await s.call(threads) == [2] * len(many)
        gate.set()
        await running
    assert threads() == many


FORKED = """
import asyncio, os, threading, warnings
import numpy as np
from threadpoolctl import ThreadpoolController
import asyncsched as asc
from asyncsched.devices.host import allowed, blas

blas.allowed_processors = lambda: 4
warnings.simplefilter("ignore")  # newer Pythons warn of forks
libraries = ThreadpoolController().select(user_api="blas")
libraries.limit(limits=4)
threads = lambda: [library.num_threads for library in libraries.lib_controllers]

async def in_child():
    async with asc.Scheduler("cpu", streams=2) as s:
        print(await s.call(threads), threads(), flush=True)

async def main():
    gate = threading.Event()
    async with asc.Scheduler("cpu", streams=4) as s:
        running = [s.submit_nowait(gate.wait) for _ in range(2)]
        print(threads(), flush=True)
        with blas._lock:  # as another thread may have it at this moment
            child = os.fork()
            if not child:
                print(threads(), flush=True)
                other = threading.Thread(target=asyncio.run, args=(in_child(),), daemon=True)
                other.start()
                other.join(20)
                os._exit(0)
            os.waitpid(child, 0)
        gate.set()
        await asyncio.gather(*running)

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_fork_has_the_threads_from_before_and_schedulers_of_its_own() -> None:
    assert fresh(FORKED).splitlines() == ["[1]", "[4]", "[4] [4]"]


# -- streams --------------------------------------------------------------------------------------------------------


async def test_a_stream_waits_for_a_producer_on_another() -> None:
    gate = threading.Event()
    names: list[str] = []

    def where(*_: Any) -> float:
        names.append(threading.current_thread().name)
        return 1.0

    async with asc.Scheduler("cpu", streams=2) as s:
        stands_still(s)
        first = s.submit_nowait(held, gate, 5)
        for _ in range(2):
            s.submit_nowait(held, gate)  # both streams have a tail now
        readers = [s.submit_nowait(where, first) for _ in range(6)]
        await turns()
        assert not any(reader.done() for reader in readers)
        gate.set()
        assert await asc.gather(*readers) == [1.0] * 6
    assert len(set(names)) == 2


async def test_crossing_chains_on_many_streams() -> None:
    async with asc.Scheduler("cpu", streams=4, max_ops=8) as s:
        rows = [await s.put(BLOCK * i) for i in range(4)]
        for step in range(200):
            rows = [rows[i] + rows[(i + 1 + step) % 4] * 0.5 for i in range(4)]
            rows = [row * 0.5 for row in rows]
        expected = [BLOCK * i for i in range(4)]
        for step in range(200):
            expected = [expected[i] + expected[(i + 1 + step) % 4] * 0.5 for i in range(4)]
            expected = [row * 0.5 for row in expected]
        for row, array in zip(rows, expected, strict=True):
            assert (await row).tobytes() == array.tobytes()
        assert s.statistics().peak_tasks_in_flight <= 8


async def test_a_put_is_not_behind_the_compute_stream(s: asc.Scheduler) -> None:
    gate = threading.Event()
    s.submit_nowait(held, gate)
    for array in (BLOCK, BLOCK[0]):
        assert (await (await asyncio.wait_for(s.put(array), 60)).numpy()).sum() == array.sum()
    gate.set()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
async def test_a_stream_has_let_go_of_a_task_when_it_wakes_the_loop(
    fake: Fake, gate: threading.Event, device: str
) -> None:
    """A wake-up gives the GIL away, and whoever awaited the task goes on while the stream's thread is in it."""
    seen: list[list[Any]] = []

    def in_hand() -> list[Any]:
        frame, found = sys._getframe(), []
        while frame is not None:
            found += [held for held in frame.f_locals.values() if isinstance(held, Task | Job | tuple) and held]
            frame = frame.f_back  # type: ignore[assignment]
        return found

    async with asc.Scheduler(device) as s:
        completions = engine_of(s).completions
        wake, loop_thread = completions.wake, threading.get_ident()

        def looking() -> None:
            if threading.get_ident() != loop_thread:
                seen.append(in_hand())
            wake()

        completions.wake = looking
        for body in (partial(held, gate), lambda: held(gate) or fail()):
            gate.clear()
            calling = asyncio.ensure_future(s.call(body))
            await turns()
            gate.set()
            await asyncio.wait([calling])
            assert seen == [[]]
            seen.clear()
            calling.exception()
        told = asyncio.get_running_loop().create_future()
        gate.clear()
        s.devices[0].offload(Job(lambda: held(gate), waiters=[lambda _: told.set_result(None) or True]))
        gate.set()
        await told
        assert seen == [[]]


def test_reaching_a_count_from_several_threads() -> None:
    counter = Counter()
    waiting = [threading.Thread(target=counter.reach, args=(n,)) for n in (1, 2, 3, 3)]
    for thread in waiting:
        thread.start()
    for _ in range(3):
        counter.step()
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()


# -- the pool -------------------------------------------------------------------------------------------------------

MIB = 2**20


async def test_a_result_in_c_order_goes_into_a_recycled_buffer_whatever_the_layout_of_the_operands(
    s: asc.Scheduler,
) -> None:
    x = await s.put(np.ones((100, 100)))
    product, turned = x.mT @ x, x.mT + x.mT
    await s.barrier()
    assert isinstance(value_of(product).block, np.ndarray)
    assert not isinstance(value_of(turned).block, np.ndarray)  # in Fortran's order, as in NumPy


@pytest.mark.one_loop
@pytest.mark.parametrize("streams", [1, 2])
async def test_arithmetic_with_a_row_or_a_column_does_without_numpys_buffers(
    streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[Any, int]] = []

    def noted(function: Any, width: int, *arrays: Any, **options: Any) -> Any:
        sizes.append((function, width))
        return without_buffers(function, width, *arrays, **options)

    monkeypatch.setattr(cut, "without_buffers", noted)
    a = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    async with asc.Scheduler("cpu", streams=streams) as s:
        x, row, column = await s.put(a), await s.put(a[0]), await s.put(a[:, :1])
        assert (await (x - row)).tobytes() == (a - a[0]).tobytes()
        assert (await (column * row)).tobytes() == (a[:, :1] * a[0]).tobytes()
        assert set(sizes) == {(np.subtract, 1024), (np.multiply, 1024)}
        sizes.clear()
        whole, wide = await s.put(a[:16].reshape(1, -1)), asc.astype(row, asc.float64)
        for y, expected in (
            (x + x, a + a),  # nothing is repeated
            (x * 2.0, a * np.float32(2)),
            (asc.maximum(x, row), np.maximum(a, a[0])),  # is quicker with them
            (x + wide, a + a[0].astype(np.float64)),  # needs them
            (x[:8, :1] + whole, a[:8, :1] + a[:16].reshape(1, -1)),  # rows that are longer
        ):
            assert (await y).tobytes() == expected.tobytes()
        assert not sizes
        assert await s.call(np.getbufsize) == np.getbufsize()


def test_a_buffer_comes_back_last_in_first_out() -> None:
    pool = Pool(None)
    first, second = pool.take(MIB), pool.take(MIB)
    pool.give(first)
    pool.give(second)
    assert pool.take(MIB) is second
    assert pool.take(MIB - 63) is first  # rounded up to a cache line
    assert (pool.live, pool.free) == (2 * MIB, 0)


def test_live_and_free_bytes_stay_under_the_limit() -> None:
    pool = Pool(4 * MIB)
    blocks = [pool.take(MIB) for _ in range(4)]
    for block in blocks:
        pool.give(block)
    large = pool.take(3 * MIB)
    assert (pool.live, pool.free) == (3 * MIB, MIB)
    assert pool.take(MIB) is blocks[-1]  # the oldest were let go
    pool.adopt(MIB)
    assert pool.live == 5 * MIB  # what is live is admission's concern
    pool.give(MIB)
    pool.give(large)
    pool.take(MIB)
    assert (pool.live, pool.free) == (2 * MIB, 0)


def test_free_bytes_are_bounded_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.devices.host.memory.UNBOUNDED_FREE", 3 * MIB)
    pool = Pool(None)
    blocks = [pool.take(MIB + i * 64) for i in range(6)]
    for block in blocks:
        pool.give(block)
    kept = pool.take(MIB + 5 * 64)
    assert kept is blocks[5]
    assert pool.free <= 3 * MIB
    assert pool.take(MIB) is not blocks[0]


def full(*_: Any) -> None:
    raise MemoryError


def test_a_block_that_there_is_no_memory_for_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(4 * MIB)
    pool.give(pool.take(MIB))
    monkeypatch.setattr(host_memory, "_new_array", full)
    for _ in range(12):
        with pytest.raises(MemoryError):
            pool.take(3 * MIB)
        assert pool.live == 0
    monkeypatch.undo()
    pool.take(MIB)
    assert (pool.live, pool.free) == (MIB, 0)


def test_nor_does_one_where_there_is_no_memory_for_the_list_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(4 * MIB)
    pool.give(pool.take(MIB))
    monkeypatch.setattr(host_memory, "deque", full)
    with pytest.raises(MemoryError):
        pool.take(3 * MIB)
    assert (pool.live, pool.free) == (0, 0)
    monkeypatch.setattr(host_memory, "_new_array", full)
    monkeypatch.setattr(pool, "give", full)
    with pytest.raises(MemoryError):
        pool.take(3 * MIB)
    assert (pool.live, pool.free) == (0, 0)


def test_poison_overwrites_what_comes_back() -> None:
    pool = Pool(None, poison=True)
    block = pool.take(MIB)
    block[:] = 1
    pool.give(block)
    assert set(block.tolist()) == {0xA5}


def test_several_threads_take_and_give() -> None:
    pool = Pool(8 * MIB)
    errors = []

    def work(mark: int) -> None:
        for _ in range(300):
            block = pool.take(MIB // 4)
            block[:16] = mark
            if set(block[:16].tolist()) != {mark}:
                errors.append(mark)
            pool.give(block)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    pool.give(pool.take(64))
    pool.take(64)
    assert not errors
    assert pool.live == 64


# -- the end of the interpreter ---------------------------------------------------------------------------------------

ENDING = """
import asyncio, atexit, os, threading
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np, asyncsched as asc

gate, begun, never = threading.Event(), threading.Event(), threading.Event()

def multiply():
    begun.set()
    gate.wait()
    for _ in range(50):
        np.ones((200, 200)) @ np.ones((200, 200))
    os.write(1, b"ended ")

async def main():
    s = await asc.open("cpu", streams=STREAMS)
    s.submit_nowait(multiply, resource=0)
    s.submit_nowait(os.write, 1, b"begun ", resource=0)
    if STREAMS > 1:
        waits = s.submit_nowait(BODY, resource=1)
    begun.wait()

asyncio.run(main())
atexit.register(gate.set)
"""


@pytest.mark.parametrize(("streams", "body"), [(1, "never.wait"), (2, "int"), (2, "never.wait")])
def test_what_runs_when_the_interpreter_ends_is_waited_for_and_begins_nothing_more(streams: int, body: str) -> None:
    """A BLAS hangs, or crashes, that is ended while a thread is in it. What takes long is left behind."""
    assert fresh(ENDING.replace("STREAMS", str(streams)).replace("BODY", body)) == "ended "
