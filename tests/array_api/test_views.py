"""Views in the namespace for code that cannot `await`: what they share, how they are written to, and by whom."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import array_api as xp
from asyncsched.array_api.array import kept
from asyncsched.runtime.waiting import drained
from tests.ledger import array_of
from tests.waiting import held

A = np.arange(24.0).reshape(2, 3, 4)
# How a view is made, with NumPy and in the namespace alike.
VIEWS = {
    "item": lambda m, x: x[1],
    "slice": lambda m, x: x[:, 1:3],
    "strides": lambda m, x: x[::-1, ::2, 3:0:-2],
    "ellipsis": lambda m, x: x[..., 2],
    "axis": lambda m, x: x[:, None, 1, None],
    "no axes": lambda m, x: x[1, 2, 3, ...],
    "of a view": lambda m, x: x[1:][0][::-1, 1:][1],
    "permuted": lambda m, x: m.permute_dims(x, (2, 0, 1)),
    "moved": lambda m, x: m.moveaxis(x, 0, -1),
    "flipped": lambda m, x: m.flip(x, axis=(0, 2)),
    "all flipped": lambda m, x: m.flip(x),
    "expanded": lambda m, x: m.expand_dims(x, axis=1),
    "squeezed": lambda m, x: m.squeeze(x[:, 1:2], axis=1),
    "transposed": lambda m, x: m.matrix_transpose(x)[0],
    "mT": lambda m, x: x.mT,
    "T": lambda m, x: x[0].T,
    "reshaped": lambda m, x: m.reshape(x, (6, 4)),
    "flat": lambda m, x: m.reshape(x, (-1,))[3::5],
    "a part reshaped": lambda m, x: m.reshape(x[:, 1:], (2, 2, 2, 2)),
    "no copy": lambda m, x: m.reshape(x[:, :, :2], (2, 3, 2, 1), copy=False),
    "unstacked": lambda m, x: m.unstack(x, axis=1)[2],
    "as it is": lambda m, x: m.astype(x, np.float64, copy=False),
    "the array": lambda m, x: m.asarray(x),
    "empty": lambda m, x: x[:, 2:2],
    "real": lambda m, x: m.real(x),
    "broadcast": lambda m, x: m.broadcast_arrays(x, x[0])[0],
}
# Functions whose results are no views, though something of theirs might be.
COPIES = {
    "by tensor": lambda m, x: x[m.asarray([1, 0])],
    "by mask": lambda m, x: x[x > 3],
    "one element": lambda m, x: x[0, 1, 2],
    "a part that is none reshaped": lambda m, x: m.reshape(x[:, :, 1:3], (4, 3)),
    "reshaped copy": lambda m, x: m.reshape(x, (-1,), copy=True),
    "grid": lambda m, x: m.meshgrid(x[0, 0], x[0, 1])[0],
    "asarray": lambda m, x: m.asarray(x, copy=True),
    "of another dtype": lambda m, x: m.astype(x, np.float32),
    "imaginary": lambda m, x: m.imag(x) + 0,
    "positive": lambda m, x: m.positive(x),
    "copied": lambda m, x: copy.copy(x),
    "pickled": lambda m, x: pickle.loads(pickle.dumps(x[:, 1])),
}


@pytest.fixture(autouse=True)
def closed():
    """Each test ends with no background scheduler."""
    yield
    kept.replace({"device": "cpu"})


def equal(x, a):
    np.testing.assert_array_equal(np.asarray(x), np.asarray(a), strict=True)


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_through_a_view_reaches_all_that_share_it(name):
    view = VIEWS[name]
    a = A.copy()
    x = xp.asarray(a)
    views = {other: (make(xp, x), make(np, a)) for other, make in VIEWS.items()}
    before, total, alone = np.asarray(x), xp.sum(x), xp.asarray(x, copy=True)
    for v, b in ((view(xp, x), view(np, a)), views[name]):
        v[...] = -1.0
        b[...] = -1.0
        v += 5
        b += 5
        if b.ndim:
            v[: b.shape[0] // 2] = 7.0
            b[: b.shape[0] // 2] = 7.0
    x[1, 0, ...] = 3
    a[1, 0, ...] = 3
    for v, b in ((x, a), *views.values()):
        equal(v, b)
    equal(before, A)
    equal(alone, A)
    assert float(total) == A.sum()


@pytest.mark.parametrize("name", COPIES)
def test_what_is_no_view_is_not_written_to(name):
    a = A.copy()
    x = xp.asarray(a)
    y, b = COPIES[name](xp, x), COPIES[name](np, a)
    y[...] = -1
    equal(x, A)
    x[...] = 9
    assert np.all(np.asarray(y) == -1)
    assert np.shape(b) == y.shape


def test_of_complex_numbers_the_parts_are_views():
    a = np.array([1 + 2j, 3 + 4j])
    x = xp.asarray(a)
    xp.real(x)[0] = 7
    xp.imag(x)[...] *= 2
    equal(x, [7 + 4j, 3 + 8j])


def test_one_element_takes_an_array_of_one():
    x = xp.asarray(A)
    x[0, 1, 2] = xp.asarray([7.0])
    equal(x[0, 1], [4.0, 5.0, 7.0, 7.0])


def test_overlapping_parts_of_an_array_are_assigned_to_each_other():
    parts = np.s_[1:], np.s_[:-1], np.s_[:], np.s_[::-1], np.s_[:, 1:], np.s_[:, :1]
    for key, source in ((parts[0], parts[1]), (parts[1], parts[0]), (parts[3], parts[2]), (parts[4], parts[5])):
        a = np.arange(30_000.0).reshape(10_000, 3)
        x = xp.asarray(a)
        x[key] = x[source]
        a[key] = a[source]
        equal(x, a)
        x[key] += x[source]
        a[key] += a[source]
        equal(x, a)
    row = x[0]
    row += row[::-1]
    a[0] += a[0, ::-1]
    equal(x, a)


def test_tensors_and_masks_are_keys_of_views():
    a = A.copy()
    x = xp.asarray(a)
    v, b = xp.permute_dims(x, (2, 1, 0))[1:], np.permute_dims(a, (2, 1, 0))[1:]
    v[xp.asarray([2, 0]), 1] = xp.asarray([[50.0, 51.0], [52.0, 53.0]])
    b[np.array([2, 0]), 1] = [[50.0, 51.0], [52.0, 53.0]]
    v[v > 15] = 0
    b[b > 15] = 0
    v[0, 1, xp.asarray(0)] = xp.asarray(99)
    b[0, 1, 0] = 99
    equal(x, a)


def test_arrays_in_another_order_are_written_to():
    for a in (np.asfortranarray(A), A.copy().T, A.copy()[:, ::-1]):
        x, b = xp.asarray(a), a.copy(order="K")
        for y, c in ((x, b), (x + 1, b + 1), (xp.permute_dims(x, (1, 2, 0)) * 2, np.permute_dims(b, (1, 2, 0)) * 2)):
            flat = xp.reshape(y, (-1,))
            row = y[1]
            part = xp.reshape(row, (-1,))
            row[0] = 77
            c[1][0] = 77
            y += 1
            c += 1
            equal(y, c)
            equal(row, c[1])
            assert float(flat[0]) != -5
            assert part.shape == (row.size,)


def test_what_lies_in_c_order_is_reshaped_as_a_view_though_that_is_not_known_before():
    x = xp.asarray(A)[:, :, 1:3] + 1  # of what is strided: in C order all the same
    flat = xp.reshape(x, (-1,))
    flat[2] = 50
    assert float(x[0, 1, 0]) == 50
    with pytest.raises(ValueError, match="copy=False is impossible"):
        xp.reshape(xp.asarray(A)[:, :, 1:3], (-1,), copy=False)


def test_views_that_are_read_only_say_so():
    x = xp.asarray(A)
    windows = xp.sliding_window_view(x, 2, axis=2)
    for view in (xp.broadcast_to(x[0, 0], (3, 4)), xp.linalg.diagonal(x), xp.broadcast_arrays(x, x[0])[1][0], windows):
        with pytest.raises(ValueError, match=r"read-only, as NumPy's is: `xp.asarray\(x, copy=True\)`"):
            view[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            view += 1
    equal(x, A)


def test_a_refused_write_changes_nothing():
    x = xp.asarray(A)
    v = x[0, :, 1:]
    for write in (
        lambda: v.__setitem__(5, 1), lambda: v.__setitem__(0, xp.ones(7)), lambda: v.__iadd__(1j),
        lambda: v.__iadd__(xp.ones((9, 3, 3))), lambda: v.__setitem__(0, "a"), lambda: v.__setitem__("a", 1),
        lambda: v.__itruediv__(np.float64(2) * xp.ones((2, 1, 1))),
    ):  # fmt: skip
        with pytest.raises((IndexError, ValueError, TypeError)):
            write()
    equal(x, A)


def test_a_write_that_fails_where_it_runs_fails_all_that_share_it():
    x = xp.asarray(A)
    v, kept_before = x[0], xp.sum(x)
    v[xp.asarray([9])] = 1
    for read in (lambda: np.asarray(x), lambda: float(v[0, 0]), lambda: float(xp.sum(x[1]))):
        with pytest.raises(IndexError, match="out of bounds"):
            read()
    assert "failed: IndexError" in repr(v)
    assert float(kept_before) == A.sum()
    y = xp.asarray(A)
    y[0, 0] = xp.asarray([1.0])[xp.asarray([3])]
    with pytest.raises(IndexError):
        np.asarray(y)


def test_a_view_keeps_its_owner_and_a_pickle_of_it_does_not():
    x = xp.asarray(np.ones(1_000_000))
    v = x[:2]
    del x
    assert statistics().bytes_retained >= 8_000_000
    w = pickle.loads(pickle.dumps(v))
    w[0] = 5
    assert np.asarray(v).tolist() == [1.0, 1.0]
    del v
    assert statistics().bytes_retained < 1_000_000


def statistics():
    background = kept.get()
    return background.issue(background.scheduler.statistics)


def test_what_left_by_dlpack_keeps_its_value():
    x = xp.asarray(A)
    for part in (x, x[1], xp.permute_dims(x, (2, 0, 1))):
        out = np.from_dlpack(part)
        like = out.copy()
        x += 1
        equal(out, like)
    equal(x, A + 3)


def writes(b, x):
    for i in range(1000):
        b[i] = float(i)


def updates(b, x):
    for _ in range(1000):
        b += 1


def mixed(b, x):
    for i in range(1, 1000):
        x[i, 3] = x[i - 1, 3] + 1
        x[i, 4:6] = x[i - 1, 5:3:-1]


@pytest.mark.parametrize("work", [writes, updates, mixed])
def test_a_thousand_writes_take_no_room_for_a_second_array(work):
    a = np.zeros((1000, 128))
    work(a[:, 3], a)
    nbytes = a.nbytes
    with xp.using("cpu", max_bytes=int(1.5 * nbytes)):
        x = xp.zeros(a.shape)
        work(x[:, 3], x)
        equal(x, a)
        found = statistics()
        assert found.peak_bytes <= 1.5 * nbytes
        assert found.bytes_retained == nbytes
        del x
        assert statistics().bytes_retained == 0


def swaps(m, x):
    for i in range(30):
        j = 199 - i
        x[i], x[j] = m.asarray(x[j], copy=True), m.asarray(x[i], copy=True)


def moves(m, x):
    for i in range(60):
        x[i] = x[199 - i]
        x[i, :9] = m.flip(x[i + 1, 1:10])


def eliminates(m, x):
    for k in range(3):
        for i in range(k + 1, 12):
            x[i, k:] -= x[k, k:] * (x[i, k : k + 1] / x[k, k : k + 1])


def sums(m, x):
    for i in range(40):
        x[i] *= m.sum(m.permute_dims(x, (1, 0))[::2], axis=0)[i]
        x[1:] += 0.5


@contextmanager
def streams_held(count=2):
    """What is issued inside waits: no stream begins anything before the end."""
    gate, background = threading.Event(), kept.get()
    slow = [background.issue(background.scheduler.submit_nowait, held, gate) for _ in range(count)]
    try:
        yield
    finally:
        gate.set()
        background.wait(drained, background.runtime, background.runtime.engine.root)
        del slow


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("work", [swaps, moves, eliminates, sums])
def test_writes_between_reads_take_no_room_for_a_second_array(work, waits):
    a = np.random.default_rng(0).uniform(1, 2, (200, 1000))
    with xp.using("cpu", streams=2, max_bytes=20 * a.nbytes):
        x = xp.asarray(a)
        with streams_held() if waits else nullcontext():
            work(xp, x)
        work(np, a)
        equal(x, a)
        if waits:  # else a stream's thread may hold what it is about to drop
            assert statistics().peak_bytes < 1.5 * a.nbytes
        assert statistics().bytes_retained == a.nbytes


@pytest.mark.parametrize("max_ops", [1, 3, 64])
@pytest.mark.parametrize("work", [swaps, eliminates])
def test_nor_is_more_than_the_limit_asked_for(work, max_ops):
    a = np.random.default_rng(0).uniform(1, 2, (200, 1000))
    with xp.using("cpu", streams=2, max_ops=max_ops, max_bytes=int(1.1 * a.nbytes)):
        x = xp.asarray(a)
        work(xp, x)
        work(np, a)
        equal(x, a)
        assert statistics().peak_bytes <= 1.1 * a.nbytes


def test_a_write_waits_for_reads_whatever_becomes_of_them():
    a = np.random.default_rng(0).uniform(1, 2, (200, 1000))
    with xp.using("cpu", streams=2):
        x = xp.asarray(a)
        with streams_held():
            failed, cancelled, read = xp.take(x, xp.asarray([300]), axis=0), xp.sqrt(x), xp.sqrt(x[:])
            x[:3] = 1
            kept.get().issue(asc.Tensor(cancelled._place.storage.value).cancel)
            x[0] = 2
        equal(read, np.sqrt(a))
        a[:3] = [[2], [1], [1]]
        equal(x, a)
        assert statistics().peak_bytes < 3.5 * a.nbytes  # two results besides
        for refused, error in ((failed, IndexError), (cancelled, asc.TaskCancelled)):
            with pytest.raises(error):
                np.asarray(refused)


def churns(m, x, first, draw):
    """Swaps, moves and updates of a hundred rows, of which nobody else knows."""
    for _ in range(25):
        i, j = first + draw.randrange(100), first + draw.randrange(100)
        x[i], x[j] = m.asarray(x[j], copy=True), m.asarray(x[i], copy=True)
        x[i] -= x[j] * 0.5
        x[first : first + 50, ::2] *= 1.01
        x[i, :500] = m.sum(x[first : first + 100], axis=0)[:500]
        x[first + 1 : first + 100] = x[first : first + 99]


@pytest.mark.parametrize(("streams", "max_ops"), [(1, 64), (2, 2), (4, 8)])
def test_threads_write_to_parts_of_one_array_within_a_limit(streams, max_ops):
    a = np.random.default_rng(0).uniform(1, 2, (300, 1000))
    with xp.using("cpu", streams=streams, max_ops=max_ops, max_bytes=int(2.5 * a.nbytes)):
        x = xp.asarray(a)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda i: churns(xp, x, 100 * i, random.Random(i)), range(3)))
        for i in range(3):
            churns(np, a, 100 * i, random.Random(i))
        equal(x, a)
        assert statistics().peak_bytes <= 2.5 * a.nbytes


def test_a_write_waits_for_the_streams_of_reads():
    with xp.using("cpu", streams=4):
        x, streams, waits = xp.zeros((200, 1000)), kept.get().runtime.devices[0].streams, {}
        x[0] = 1
        assert float(x[0, 0]) == 1  # no more to wait for than what reads it
        kept.get().runtime.clock = lambda: 0.0  # else a stream may seem to be free soon
        with streams_held(4):
            read = [xp.sqrt(x) for _ in range(4)]
            busy = {y._place.storage.value.task.lane.stream for y in read}
            for stream in streams:
                launch = stream.launch
                stream.launch = lambda task, points, here=stream, launch=launch: (
                    waits.update({here: {other for other, _ in points}}) or launch(task, points)
                )
            x[1] = 2
        ((here, others),) = waits.items()
        assert others == busy - {here}
        assert len(busy) > 1
        assert float(xp.sum(x)) == 3000
        assert all(float(xp.sum(y)) == 1000 for y in read)


def test_a_write_takes_no_second_array_while_somebody_looks_at_all_objects():
    a = np.ones((200, 1000))
    with xp.using("cpu", streams=2):
        x = xp.asarray(a)
        with streams_held():
            x[0] = 2
            looking = gc.get_objects()  # as a profiler does
        a[0] = 2
        equal(x, a)
        del looking
        assert statistics().peak_bytes < 1.5 * a.nbytes


def test_a_view_that_others_hold_costs_one_copy():
    a = np.ones((200, 1000))
    with xp.using("cpu", streams=2, max_bytes=20 * a.nbytes):
        x = xp.asarray(a)
        out = np.from_dlpack(x)
        for i in range(50):
            x[i] = 3.0
            x[i + 1] = x[i]
        a[:51] = 3
        equal(x, a)
        assert np.all(out == 1)
        assert statistics().peak_bytes < 2.5 * a.nbytes


def test_a_write_leaves_alone_what_others_hold():
    a = np.ones((200, 1000))
    x = xp.asarray(a)
    copying = x._place.storage.lease  # as a thread has that copies it to the host
    x[0] = 2
    a[0] = 2
    equal(x, a)
    assert np.all(array_of(copying) == 1)
    assert statistics().peak_bytes > 1.5 * a.nbytes


def test_a_write_beside_a_copy_to_the_host_waits_for_nothing(monkeypatch):
    a = np.ones((200, 1000))
    x, background = xp.asarray(a), kept.get()
    fetch, written = background.runtime.devices[0].fetch, []

    def fetch_beside_a_write(array):  # as if by another thread
        if not written:
            written.append(1)
            x[0] = 2
        return fetch(array)

    monkeypatch.setattr(background.runtime.devices[0], "fetch", fetch_beside_a_write)
    equal(x, a)
    a[0] = 2
    equal(x, a)


def test_an_update_of_a_part_is_one_task():
    x = xp.asarray(np.ones((200, 1000)))
    before = statistics().tasks_submitted
    x[1:] += 1
    x[:, 3] *= 2
    assert statistics().tasks_submitted <= before + 4  # two views and two writes
    read_only = xp.broadcast_to(x[0], (2, 1000))
    with pytest.raises(ValueError, match="read-only"):
        read_only[0] = read_only[0]


def test_what_fails_to_be_written_is_charged_no_more():
    x = xp.zeros((1000, 128))
    x[0] = 1  # in its own buffer, as what follows
    x[xp.asarray([1000])] = 2
    x[1] = 3
    with pytest.raises(IndexError, match="out of bounds"):
        np.asarray(x)
    assert statistics().bytes_retained == 0
    assert statistics().bytes_in_flight == 0
    y = xp.zeros((1000, 128))
    y[0] = 1
    assert float(xp.sum(y)) == 128
    assert statistics().bytes_retained == 1_024_000


def test_threads_share_an_array_and_its_views():
    x = xp.zeros((8, 20_000))
    stop, seen = threading.Event(), []

    def write(i):
        row = x[i]
        for n in range(60):
            row[...] = float(n)
        row += 1

    def read():
        while not stop.is_set():
            seen.append([len(np.unique(row)) for row in np.asarray(x)])

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert seen
    assert all(count == 1 for counts in seen for count in counts)  # no row was read half written
    equal(x, np.full((8, 20_000), 60.0))


def test_what_waits_was_given_what_it_read_before_the_write():
    gate = threading.Event()
    background = kept.get()
    slow = background.issue(background.scheduler.submit_nowait, held, gate)
    x = xp.asarray(np.ones(20_000))
    total, view = xp.sum(x * 2), x[1:3]
    x[...] = 5
    view += 1
    gate.set()
    assert float(total) == 40_000
    assert float(xp.sum(x)) == 100_002
    del slow


def test_views_can_be_read_after_their_scheduler_was_closed():
    with xp.using("cpu", streams=1):
        x = xp.asarray(A)
        v = xp.permute_dims(x, (2, 0, 1))[1:]
        v[0] = 5
    a = np.permute_dims(A, (2, 0, 1))[1:].copy()
    a[0] = 5
    equal(v, a)
    for refused in (lambda: v.__setitem__(0, 1), lambda: v + 1, lambda: v[0], lambda: v.__iadd__(1)):
        with pytest.raises(asc.SchedulerClosed, match="brings it"):
            refused()


STEPS = (
    "view", "view", "view", "write", "write", "update", "copy", "between", "between", "gather", "select", "operator",
    "operator", "swap", "duplicate", "numpy", "refused",
)  # fmt: skip


def step(draw, pool, texts):
    """One step of a program, on an array of the namespace and one of NumPy's."""
    x, a = draw.choice(pool)
    kind = draw.choice(STEPS)
    if kind == "view":
        name = draw.choice(["slice", "flip", "permute", "expand", "item", "reshape"]) if a.size and a.ndim else "expand"
        pool.append(view_of(draw, name, x, a))
    elif kind == "write":
        value = float(draw.randrange(100))
        key = key_of(draw, a)
        x[key] = value
        a[key] = value
    elif kind == "update":
        x *= 2
        a *= 2
        x -= 1
        a -= 1
    elif kind == "copy":
        pool.append((x + 1, np.asarray(a + 1)))
    elif kind == "between":
        y, b = draw.choice(pool)
        if fits(a, b):
            x[...] = y
            a[...] = b
    elif kind == "select":
        write_to_selected(draw, x, a)
    elif kind == "operator":
        in_place(draw, x, a, *draw.choice(pool))
    elif kind == "swap" and a.ndim > 1 and len(a):
        i, j = draw.randrange(len(a)), draw.randrange(len(a))
        x[i], x[j] = xp.asarray(x[j], copy=True), xp.asarray(x[i], copy=True)
        a[i], a[j] = a[j].copy(), a[i].copy()
    elif kind == "duplicate":
        make = draw.choice([copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
        like = make(a)
        pool.append((make(x), like if like.base is None else like.copy(order="K")))  # else pickle's bytes are its base
    elif kind == "numpy":
        equal(np.add(x, a), a + a)
        equal(np.asarray(x, dtype=np.float32), a.astype(np.float32))
    elif kind == "refused":
        for write in (lambda: x.__setitem__("a", 1), lambda: x.__setitem__((0,) * 9, 1), lambda: x.__iadd__(1j)):
            with pytest.raises((IndexError, TypeError)):
                write()
    elif a.ndim:
        indices = [draw.randrange(a.shape[0]) for _ in range(3)] if a.size else []
        pool.append((x[xp.asarray(indices, dtype=xp.int64)], a[np.array(indices, np.int64)]))
    texts.append(kind)


def write_to_selected(draw, x, a):
    """Assign a number, or a number each, to what a mask or indices select."""
    if not a.ndim:
        return
    if draw.random() < 0.5:
        x[x > 40] = 7.0
        a[a > 40] = 7.0
    elif a.size:
        indices = np.array([draw.randrange(-len(a), len(a)) for _ in range(3)])
        values = np.arange(3.0).reshape(3, *[1] * (a.ndim - 1))
        x[xp.asarray(indices)] = xp.asarray(values)
        a[indices] = values


def in_place(draw, x, a, y, b):
    """Update with a number, or with another array of the pool, which may be a view of the same memory."""
    operation = draw.choice([operator.iadd, operator.isub, operator.imul])
    if fits(a, b):
        operation(x, y)
        operation(a, b)
        x %= 97
        a %= 97
    key = key_of(draw, a)
    part, like = x[key], a[key]
    x[key] = operation(part, 2)  # as Python does for `x[key] += 2`
    a[key] = operation(like, 2)


def fits(a, b):
    try:
        return np.broadcast_shapes(a.shape, b.shape) == a.shape
    except ValueError:
        return False


def view_of(draw, name, x, a):
    if name == "slice":
        key = key_of(draw, a)
        return x[key], a[key]
    if name == "flip":
        axis = draw.randrange(a.ndim)
        return xp.flip(x, axis=axis), np.flip(a, axis)
    if name == "permute":
        order = draw.sample(range(a.ndim), a.ndim)
        return xp.permute_dims(x, order), np.permute_dims(a, order)
    if name == "expand":
        return xp.expand_dims(x, axis=0), np.expand_dims(a, 0)
    if name == "item":
        i = draw.randrange(-a.shape[0], a.shape[0])
        return x[i, ...], a[i, ...]
    in_order = (a if a.base is None else a.base).flags.c_contiguous  # else axes may only be split
    shape = draw.choice([(-1,), (1, -1), (*a.shape[:-1], -1, 1)][0 if in_order else 2 :])
    return xp.reshape(x, shape), a.reshape(shape)


def key_of(draw, a):
    def part(n):
        start, stop = sorted(draw.choices(range(n + 1), k=2))
        return draw.choice([slice(None), slice(start, stop), slice(None, None, -1), slice(start, None, 2)])

    return (*[part(n) for n in a.shape[: draw.randrange(a.ndim + 1)]], ...)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_of_views_and_writes_equal_numpys(seed):
    draw = random.Random(seed)
    large = seed % 2  # enough for buffers that are recycled
    a = np.arange(24.0 * (1000 if large else 1)).reshape(2, 3, -1) % 89
    pool, texts = [(xp.asarray(a), a)], []
    kept_copies = []
    for number in range(60):
        step(draw, pool, texts)
        if number % 10 == 0:
            x, a = draw.choice(pool)
            kept_copies.append((np.asarray(x), a.copy()))
    for x, a in (*pool, *kept_copies):
        equal(x, a)
