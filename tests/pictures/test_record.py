"""What a scheduler and its parts tell of themselves prints with units, and stays exact."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from dataclasses import fields, is_dataclass, replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher import BatcherStatistics, StepperStatistics
from asyncsched.flow.pipeline.epoch import PipelineStatistics, StageStatistics
from asyncsched.flow.window import WindowStatistics
from asyncsched.observe.recording import Recording, ScopeRecord, TaskRecord
from asyncsched.observe.replay import Outcome
from asyncsched.observe.summary import Operation, ScopeState, Snapshot, StreamState, Waiting
from asyncsched.observe.timer import Measurement, Times
from asyncsched.pictures.record import Record
from asyncsched.runtime.rates import WaitingForRoom

GIB = 2**30
LOAD = asc.Load(3, 2, int(11.8 * GIB), 0, None, 1234.5678901234567, 2.5 * GIB + 0.1, 0.0031998877665544332)
STAGE = StageStatistics(
    "1: decode", 4, 16, 12_345, 3.2000000000000001e-3, 61.00000000000001, 0.0, 99.5, 2**20, 2.6e-7, 1, ("item 3: E",)
)  # fmt: skip
SOURCE = replace(STAGE, name="0: range", items=7, busy_seconds=1.5e-5)
PIPELINE = PipelineStatistics((SOURCE, STAGE), 2.3456789, 0.2, "1: decode")

ONE_LINE: list[tuple[Any, str]] = [
    (
        LOAD,
        "Load(tasks_pending=3, tasks_in_flight=2, bytes_tracked=11.8 GiB, bytes_pending=0 B, max_bytes=None,"
        " drain_rate_tasks=1,235, drain_rate_bytes=2.5 GiB/s, estimated_wait=3.2 ms)",
    ),
    (
        WindowStatistics(2, 12_345, 1, 0.25),
        "WindowStatistics(depth=2, iterations=12345, in_flight=1, wait_seconds=250 ms)",
    ),
    (
        STAGE,
        "StageStatistics(name='1: decode', workers=4, capacity=16, items=12345, busy_seconds=3.2 ms,"
        " input_wait_seconds=61 s, room_wait_seconds=0 us, items_per_second=99.5, bytes_per_second=1.0 MiB/s,"
        " seconds_per_item=0.26 us, skipped=1, failures=('item 3: E'))",
    ),
    (Times((0.1 + 0.2, 1 / 3)), "Times(seconds=(300 ms, 333 ms))"),
    (Times((0.1,) * 500), "Times(seconds=<500 of them>)"),
    (
        Measurement("f", Times((1e-5,)), Times((2e-5, nan))),
        "Measurement(name='f', issue=Times(seconds=(10 us)), finish=Times(seconds=(20 us, nan us)))",
    ),
    (StreamState("cpu:0", 1 / 3, 2, None, 0.0, ""), "StreamState(name='cpu:0', busy_seconds=333 ms, tasks=2,"
     " running=None, running_seconds=0 us, line='')"),
    (ScopeState("a", 1, 2**20, 1000), "ScopeState(name='a', tasks=1, reserve=1.0 MiB, used=1000 B)"),
    (Operation("add", 12, 1 / 3), "Operation(name='add', count=12, seconds=333 ms)"),
    (ScopeRecord(1, 0, "a", 1 / 3, own_queue=True, priority=0), "ScopeRecord(number=1, parent=0, name='a',"
     " opened=333 ms, own_queue=True, priority=0, tenant='', closed=None, reserve=0 B)"),
    (Recording(metadata={"a": 1 / 3}), "Recording(metadata=<1 of them>, tasks=(), scopes=<0 of them>, released=(),"
     " waits=(), counters=<0 of them>, complete=False, lost=0)"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "text"), ONE_LINE, ids=[type(record).__name__ for record, _ in ONE_LINE])
def test_a_record_is_one_line_by_repr(record, text):
    assert repr(record) == text


def test_it_is_a_line_for_each_field_by_str():
    assert str(LOAD).splitlines() == [
        "Load",
        "  tasks_pending     3",
        "  tasks_in_flight   2",
        "  bytes_tracked     11.8 GiB",
        "  bytes_pending     0 B",
        "  max_bytes         None",
        "  drain_rate_tasks  1,235",
        "  drain_rate_bytes  2.5 GiB/s",
        "  estimated_wait    3.2 ms",
    ]


def test_several_in_a_record_are_a_table():
    assert str(PIPELINE).splitlines() == [
        "PipelineStatistics",
        "  seconds       2.35 s",
        "  wait_seconds  200 ms",
        "  bottleneck    1: decode",
        "  stages",
        "    name       workers  capacity   items  busy_seconds  input_wait_seconds  room_wait_seconds"
        "  items_per_second  bytes_per_second  seconds_per_item  skipped  failures",
        "    0: range         4        16       7         15 us                61 s               0 us"
        "              99.5         1.0 MiB/s           0.26 us        1  (item 3: E)",
        "    1: decode        4        16  12,345        3.2 ms                61 s               0 us"
        "              99.5         1.0 MiB/s           0.26 us        1  (item 3: E)",
    ]
    assert str(replace(PIPELINE, stages=())).splitlines()[1:] == [
        "  stages        ()",
        "  seconds       2.35 s",
        "  wait_seconds  200 ms",
        "  bottleneck    1: decode",
    ]


def test_a_table_of_many_is_cut_and_line_breaks_in_it_are_quoted():
    some = [replace(STAGE, name=f"op\n{i}", workers=10**i, busy_seconds=nan if i else -1.5) for i in range(3)]
    lines = str(replace(PIPELINE, stages=tuple(some * 50))).splitlines()
    assert [line.split()[:5] for line in lines[6:9]] == [
        [r"'op\n0'", "1", "16", "12,345", "-1.5"],
        [r"'op\n1'", "10", "16", "12,345", "nan"],
        [r"'op\n2'", "100", "16", "12,345", "nan"],
    ]
    assert (len(lines), lines[-1]) == (57, "    ... and 100 more")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0, "0"),
        (1e300, "1e+300"),
        (-12_345.6, "-12,346"),
        (99.99, "100"),
        (1e-9, "1e-09"),
        (inf, "inf"),
        (nan, "nan"),
    ],
)
def test_a_number_is_short(value, text):
    assert f"drain_rate_tasks={text}," in repr(replace(LOAD, drain_rate_tasks=value))


async def test_the_records_of_a_scheduler_at_work(s):
    window, batcher = s.window(2), asc.Batcher(sorted)
    async with window:
        x = await s.put(np.ones(100_000))
    pipe = s.pipeline(range(3)).map(str)
    async with pipe.open() as items:
        assert [item async for item in items] == ["0", "1", "2"]
    summary = asc.observe.Summary()
    s.add_instrument(summary)
    x.sum()
    await s.barrier()
    snapshot = summary.read()
    records = [s.statistics(), s.load(), window.statistics(), pipe.statistics(), batcher.statistics(), snapshot]
    assert "  bytes_retained          781.2 KiB" in str(records[0]).splitlines()
    assert s.statistics().bytes_retained == x.nbytes
    assert "StageStatistics(name='0 (source)'" in repr(records[3])
    assert "  streams" in str(snapshot).splitlines()
    for record in records:
        for text in (str(record), repr(record)):
            assert not [word for word in text.replace(",", " ").split() if len(word.partition(".")[2]) > 4]  # digits
        ET.fromstring(record._repr_html_())


def test_in_a_notebook_it_is_a_table_and_nested_ones_are_below():
    root = ET.fromstring(PIPELINE._repr_html_())
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert rows == [["seconds", "2.35 s"], ["wait seconds", "200 ms"], ["bottleneck", "1: decode"]]
    assert "1: decode        4" in "".join(root.find("pre").itertext())  # type: ignore[union-attr]


def test_the_values_are_exact():
    assert (LOAD.bytes_tracked, LOAD.estimated_wait) == (int(11.8 * GIB), 0.0031998877665544332)
    assert LOAD == replace(LOAD) != replace(LOAD, bytes_tracked=LOAD.bytes_tracked + 1)
    assert repr(replace(LOAD, bytes_tracked=LOAD.bytes_tracked + 1)) == repr(LOAD)
    assert hash(LOAD) == hash(replace(LOAD))
    assert repr(replace(LOAD, drain_rate_tasks=inf)).count("drain_rate_tasks=inf") == 1


RECORDS = [
    asc.Load, asc.Statistics, BatcherStatistics, Measurement, Operation, Outcome, PipelineStatistics, Recording,
    ScopeRecord, ScopeState, Snapshot, StageStatistics, StepperStatistics, StreamState, TaskRecord, Times, Waiting,
    WaitingForRoom, WindowStatistics,
]  # fmt: skip


def test_these_are_all_records():
    # By name: a dataclass with slots is made anew, and the class before it may not be collected yet.
    assert set(RECORDS) == {getattr(sys.modules[kind.__module__], kind.__name__) for kind in Record.__subclasses__()}


@pytest.mark.parametrize("kind", RECORDS, ids=[kind.__name__ for kind in RECORDS])
def test_each_field_has_its_unit(kind):
    assert is_dataclass(kind)
    assert kind.__repr__ is Record.__repr__
    for field in fields(kind):
        for word, unit in (("bytes", "Bytes"), ("seconds", "Seconds"), ("wait_seconds", "Seconds")):
            assert word not in field.name or unit in str(field.type), field.name
        assert "float" not in str(field.type) or field.name in (
            "drain_rate_tasks", "items_per_second", "stepped_per_second", "waiting_cost", "busy", "released", "waits",
            "counters",
        ), f"{field.name}: which unit?"  # fmt: skip
