"""Bytes: what a graph's tasks are charged before they run, and what of them is held at a time."""

from __future__ import annotations

import logging
import threading
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask._expr import FinalizeCompute
from dask.base import collections_to_expr

from asyncsched import cluster
from asyncsched.cluster.graph import Sizes, in_order, nbytes

pytestmark = pytest.mark.usefixtures("kept")
SHARE = 10**6
BLOCK = 256 * 1024


def costs(x: Any) -> dict[str, set[int]]:
    """What the tasks of an array's graph are charged, by name, before any has run."""
    expr = FinalizeCompute(collections_to_expr([x])).optimize()
    sizes, found = Sizes(expr, SHARE), dict[str, set[int]]()
    for key, node in expr.__dask_graph__().items():
        kind = sizes.kind(key, node)
        found.setdefault(kind.name, set()).add(sizes.cost(kind, key, node))
    return found


def test_arrays_tell_the_sizes_of_their_blocks():
    x = da.from_array(np.ones((50, 10), np.float32), chunks=((30, 20), (10,)))
    assert costs(x.map_blocks(np.sort, dtype=np.float64, name="sorted"))["sorted"] == {30 * 10 * 8, 20 * 10 * 8}


def test_what_is_computed_on_the_way_in_a_fused_task_is_workspace():
    block = 10 * 10 * 8
    assert costs(da.random.random((20, 20), chunks=10).sum())["random_sample-sum"] == {2 * block}  # it says so of a sum
    both = da.random.random((20, 20), chunks=10) + 1
    (fused,) = [sizes for name, sizes in costs((both * 2).sum()).items() if name.startswith("random_sample-")]
    assert fused == {2 * block}  # however long the chain is: the two largest at a time


def test_where_nothing_is_told_it_is_a_share_and_then_what_was_measured():
    graph = dask.delayed(sum)([dask.delayed(np.ones)(i, pure=True) for i in (1000, 2000)]).__dask_graph__()
    sizes = Sizes(graph, SHARE)
    nodes = in_order(graph, set(graph))
    first, second = [key for key in nodes if key.startswith("ones-")]
    (total,) = [key for key in nodes if key.startswith("sum-")]
    kind = sizes.kind(first, nodes[first])
    assert sizes.cost(kind, first, nodes[first]) == SHARE
    assert sizes.cost(sizes.kind(total, nodes[total]), total, nodes[total]) == 2 * SHARE  # as its inputs
    kind.measured(16_000, 1e-3, False)
    kind.measured(8_000, 1e-3, False)
    assert sizes.kind(second) is kind
    assert sizes.cost(kind, second, nodes[second]) == 16_000
    assert sizes.cost(sizes.kind(total), total, nodes[total]) == 2 * 16_000
    later = Sizes(graph, 100)
    assert later.cost(later.kind(first, nodes[first]), first, nodes[first]) == 16_000  # of that name, before


def test_quick_is_what_makes_numbers_in_no_time():
    kind = Sizes({}, SHARE).kind("x-1")
    assert not kind.quick  # nothing is known yet
    kind.measured(0, 1e-6, True)
    assert kind.quick
    kind.measured(0, 5.0, True)
    assert not kind.quick
    for _ in range(20):  # that was one of many
        kind.measured(0, 1e-6, True)
    assert kind.quick
    kind.measured(0, 1e-6, False)  # a view, say, which holds what is under it
    assert not kind.quick


def test_what_is_measured_corrects_what_was_told():
    x = da.from_array(np.ones((50, 10)), chunks=((30, 20), (10,))).map_blocks(lambda b: b, dtype=float, name="layer")
    sizes = Sizes(collections_to_expr([x]), SHARE)
    kind = sizes.kind(("layer", 0, 0))
    assert [kind.output(("layer", i, 0)) for i in range(2)] == [2400, 1600]
    kind.measured(2400, 1e-3, False)
    assert [kind.output(("layer", i, 0)) for i in range(2)] == [2400, 1600]
    assert sizes.kind(("layer", 1, 0)) is kind
    kind.measured(5000, 1e-3, False)
    assert [kind.output(("layer", i, 0)) for i in range(2)] == [5000, 5000]
    less = Sizes(collections_to_expr([x]), SHARE).kind(("layer", 0, 0))
    less.measured(8, 1e-3, False)
    assert [less.output(("layer", i, 0)) for i in range(2)] == [8, 8]


def test_views_and_what_was_there_cost_nothing():
    a, pair = np.ones((10, 10)), [1, 2]
    assert nbytes(np.ones(50), {}) == (400, None)
    assert nbytes(a[2:5].T, {"b": np.ones(3), "a": a}) == (0, "a")
    assert nbytes(pair, {"b": 1, "pair": pair}) == (0, "pair")
    assert nbytes(3.5, {}) == nbytes(None, {}) == (0, None)
    assert nbytes(np.broadcast_to(1.0, (1000, 1000)), {}) == (0, None)
    assert nbytes({"mean": a, "n": np.broadcast_to(1.0, (1000, 1000)), "was": [pair[0], a[:3]]}, {"a": a}) == (0, None)
    assert nbytes(({"mean": a}, a + 1), {}) == (1600, None)
    assert nbytes(list(range(1000)), {})[0] > 1000
    assert nbytes(Mute(), {}) == (0, None)


class Mute:
    def __sizeof__(self) -> int:
        raise RuntimeError


def test_an_ordinary_graph_stays_under_its_limit(caplog):
    """Of 16 MiB that are read, 2 MiB are there at a time, whatever the shape of the graph."""
    x = da.random.random((64 * 32, 1024), chunks=(32, 1024))  # 64 blocks
    fused, apart = (x + 1).std(), x.map_blocks(np.sort, dtype=float)[:-1].max()
    loads = [dask.delayed(np.full)(BLOCK // 8, float(i)) for i in range(64)]
    delayed = dask.delayed(sum)([dask.delayed(np.sum)(load) for load in loads])
    with cluster.using(streams=4, max_bytes="2 MiB"), caplog.at_level(logging.WARNING):
        with dask.config.set(scheduler=cluster.get):
            found = dask.compute(fused, apart)
            assert delayed.compute() == sum(range(64)) * (BLOCK // 8)
            many = dask.compute([load.sum() for load in loads])[0]
        assert found[0] == pytest.approx(0.2887, abs=0.01)
        assert len(many) == 64
        statistics = cluster.statistics()
        assert BLOCK < statistics.peak_bytes <= statistics.max_bytes
    assert not caplog.records


def test_what_needs_more_than_the_limit_is_computed_all_the_same_and_told(caplog):
    x = da.ones((64 * 32, 1024), chunks=(32, 1024)) + 1
    with cluster.using(streams=2, max_bytes="1 MiB"), caplog.at_level(logging.WARNING):
        assert x.compute(scheduler=cluster.get).sum() == 2 * x.size  # 16 MiB, which the caller wants
        assert cluster.statistics().peak_bytes >= 16 * 2**20
        assert cluster.statistics().bytes_retained == 0
        assert (x.sum().compute(scheduler=cluster.get)) == 2 * x.size
    (told,) = caplog.records
    assert "the limit is 1,048,576" in told.getMessage()
    assert "asyncsched.cluster.using(max_bytes=...)" in told.getMessage()


def test_what_the_order_needs_goes_first_where_all_is_held():
    """Roots that take all there is, and a last one that makes way for the rest."""
    graph: dict[Any, Any] = {("root", i): (np.full, 1000, i) for i in range(8)}
    graph["all"] = (lambda *roots: sum(root.sum() for root in roots), *graph)
    with cluster.using(streams=2, max_bytes=20_000):
        assert cluster.get(graph, "all") == 1000 * sum(range(8))
        assert cluster.statistics().peak_bytes == 64_000


def test_runs_wait_for_each_others_bytes():
    """Two threads, each with a graph that takes all of the limit: none overshoots, and both end."""
    found: list[float] = []

    def work(i: int) -> None:
        x = da.random.random((64 * 32, 1024), chunks=(32, 1024))
        found.append((x + i).max().compute(scheduler=cluster.get))

    with cluster.using(streams=2, max_bytes="1 MiB"):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert cluster.statistics().peak_bytes <= 2**20
    assert sorted(map(round, found)) == [1, 2, 3]


def test_xarray_reduces_a_dataset_larger_than_the_limit():
    t = da.random.random((96, 64, 256), chunks=(1, 64, 256))  # 12 MiB
    data = xr.Dataset({"t": (("time", "y", "x"), t)}, {"time": range(96)})
    anomaly = abs(data.t - 0.5).mean(("y", "x")).max()
    with cluster.using(streams=2, max_bytes="1 MiB"):
        assert anomaly.compute(scheduler=cluster.get) == pytest.approx(0.25, abs=0.02)
        assert cluster.statistics().peak_bytes <= 2**20
