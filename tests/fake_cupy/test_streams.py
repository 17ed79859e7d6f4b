"""Streams, events and graphs: each hazard bites where it is met naively, and correct use is clean."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from . import fake_cupy
from .conftest import streams


def test_a_program_on_two_streams_ordered_by_an_event_is_clean(fake, cupy, a, b):
    with a:
        x = cupy.arange(12.0).reshape(3, 4)
        y = (x @ x.T + 1)[1:]
        event = a.record()
    b.wait_event(event)
    with b:
        z = y.sum(axis=0, keepdims=True) * 2
        found = z.get()
    expected = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(found, (expected @ expected.T + 1)[1:].sum(axis=0, keepdims=True) * 2)
    del x, y, z
    fake.settle()
    assert fake.problems() == []
    assert fake.live_bytes() == 0


def test_a_read_on_another_stream_without_a_wait_is_a_race_even_if_it_came_out_right(fake, cupy, a, b):
    with a:
        x = cupy.ones(4)
    fake.settle()
    with b:
        y = x + 1
    assert y.shape == (4,)
    assert any("'add' (reads" in race and "'ones' (writes" in race for race in fake.races)


def test_a_race_names_the_seed():
    with fake_cupy(seed=77) as fake:
        fake.race("one")
        assert fake.problems() == ["race: one (fake CuPy, seed 77)"]


def test_what_the_host_has_seen_needs_no_event(fake, cupy, a, b):
    with a:
        x = cupy.ones(4)
    a.synchronize()
    with b:
        found = (x + 1).get()
    assert found.tolist() == [2.0] * 4
    assert fake.races == []


def test_two_reads_do_not_race_and_a_write_after_a_read_does(one, cupy, a, b):
    with a:
        x = cupy.ones(4)
    a.synchronize()
    with a:
        y = x + 1
    with b:
        z = x + 2
    assert one.races == []
    with b:
        x[0] = 5
    assert any("'setitem' (writes" in race and "'add' (reads" in race for race in one.races)
    assert y.shape == z.shape


def test_disjoint_parts_of_a_block_do_not_race(one, cupy, a, b):
    with a:
        x = cupy.zeros(8)
    a.synchronize()
    for stream, part in ((a, x[:4]), (b, x[4:])):
        with stream:
            part += 1
    assert one.races == []


def test_waiting_on_an_event_never_recorded_does_nothing(one, cupy, a, b):
    event = cupy.cuda.Event()
    with a:
        x = cupy.ones(4)
    b.wait_event(event)
    with b:
        x + 1
    assert one.statistics["waits_on_nothing"] == 1
    assert one.races


def test_a_wait_is_for_the_recording_at_the_time_of_the_call(one, cupy, a, b):
    event = cupy.cuda.Event()
    event.record(a)
    b.wait_event(event)
    with a:
        x = cupy.ones(4)
    event.record(a)
    with b:
        x + 1
    assert one.races
    one.races.clear()
    b.wait_event(event)
    with b:
        x + 1
    assert one.races == []


def test_an_event_lies_until_it_is_recorded(one, cupy, a):
    event = cupy.cuda.Event(block=True, disable_timing=True)
    query = cupy.cuda.runtime.eventQuery
    assert event.done
    assert query(event.ptr) == 0
    with one.pause():
        with a:
            cupy.ones(4)
        event.record(a)
        assert not event.done
        assert query(event.ptr) == 600
        assert not a.done
    event.synchronize()
    assert event.done


def test_the_pointer_of_a_destroyed_stream_is_the_next_ones(one, cupy):
    first = cupy.cuda.Stream(non_blocking=True)
    pointer = first.ptr
    del first
    second = cupy.cuda.Stream(non_blocking=True)
    assert second.ptr == pointer


def test_a_reused_pointer_is_another_stream_to_the_clocks(one, cupy):
    first = cupy.cuda.Stream(non_blocking=True)
    with first:
        x = cupy.ones(4)
    del first
    second = cupy.cuda.Stream(non_blocking=True)
    with second:
        x + 1
    assert one.races


def test_a_stream_that_is_held_takes_no_step_and_others_do(fake, cupy):
    held, free = streams(cupy)
    with fake.hold(held):
        for stream in (held, free):
            with stream:
                cupy.ones(4)
        late, soon = held.record(), free.record()
        soon.synchronize()
        assert not late.done
    late.synchronize()


def test_the_default_stream_and_blocking_streams_are_reported(one, cupy):
    cupy.ones(4)
    assert "test_streams.py" in one.default_stream_launches[0]
    cupy.cuda.Stream()
    assert "test_streams.py" in one.blocking_streams[0]


def test_blocking_streams_are_serialised_with_the_default_stream(one, cupy):
    blocking = cupy.cuda.Stream()
    with blocking:
        x = cupy.ones(4)
    y = x + 1
    with blocking:
        found = (y + 1).get()
    assert found.tolist() == [3.0] * 4
    assert one.races == []


def test_the_current_stream_belongs_to_a_thread(one, cupy, a):
    seen = []
    with a:
        thread = threading.Thread(target=lambda: seen.append(cupy.cuda.get_current_stream()))
        thread.start()
        thread.join()
        assert cupy.cuda.get_current_stream() is a
    assert seen == [cupy.cuda.Stream.null]
    assert cupy.cuda.get_current_stream() == cupy.cuda.Stream.null


def captured(cupy: Any, stream: Any, work: Any) -> Any:
    with stream:
        stream.begin_capture()
        work()
        return stream.end_capture()


def test_a_graph_runs_when_it_is_launched_and_not_before(fake, cupy, a):
    with a:
        x = cupy.zeros(4)
        x += 1
    graph = captured(cupy, a, lambda: x.__iadd__(1))
    assert x.get(a).tolist() == [1.0] * 4
    for _ in range(3):
        graph.launch(a)
    assert x.get(a).tolist() == [4.0] * 4
    assert fake.races == []


def test_a_graph_on_another_stream_needs_a_wait(one, cupy, a, b):
    with a:
        x = cupy.zeros(4)
    graph = captured(cupy, a, lambda: x.__iadd__(1))
    graph.launch(b)
    assert one.races


def test_synchronising_during_capture_spoils_it(one, cupy, a):
    error = cupy.cuda.runtime.CUDARuntimeError
    with a:
        x = cupy.zeros(4)
        a.begin_capture()
        assert a.is_capturing()
        x += 1
        with pytest.raises(error, match="cudaErrorStreamCaptureUnsupported"):
            a.synchronize()
        with pytest.raises(error, match="cudaErrorStreamCaptureInvalidated"):
            a.end_capture()
    assert not a.is_capturing()


def test_a_graph_keeps_no_memory_alive(one, cupy, a):
    with a:
        x = cupy.zeros(4)
    held = [x]
    del x
    graph = captured(cupy, a, lambda: held[0].__iadd__(1))
    a.synchronize()
    held.clear()
    graph.launch(a)
    assert any("no longer as it was captured" in race for race in one.races)


def test_a_graph_may_use_blocks_its_pool_gave_to_nobody_since(one, cupy, a):
    with a:
        x = cupy.zeros(4)
        y = cupy.empty_like(x)
    graph = captured(cupy, a, lambda: cupy.add(x + 1, 1, out=y))  # the temporary is free again
    graph.launch(a)
    assert y.get(a).tolist() == [2.0] * 4
    assert one.races == []
    with a:
        taken = [cupy.empty_like(x) for _ in range(3)]
    graph.launch(a)
    assert one.races
    assert taken
