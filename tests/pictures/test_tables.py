"""HTML of schedulers, statistics and tensors: well-formed, escaped, and nothing is waited for."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import value_of
from tests.waiting import fail, held, settled


def rows(thing: object) -> dict[str, str]:
    """The rows of a table, by name; under "more" what is below it, under "title" what is above."""
    root = ET.fromstring(thing._repr_html_())  # type: ignore[attr-defined]
    found = {"title": text(root.find("b")), "more": text(root.find("pre"))}
    for row in root.iter("tr"):
        name, value = row
        found[text(name)] = text(value)
    return found


def text(element: ET.Element | None) -> str:
    return "" if element is None else "".join(element.itertext())


async def test_a_scheduler(gate):
    s = asc.Scheduler("cpu", max_ops=2, max_bytes=10_000, max_pending=None)
    assert rows(s)["title"] == "Scheduler(cpu; not open)"
    async with s:
        x = await s.put(np.ones(500))
        await s.submit(held, gate)
        assert rows(s) == {
            "title": "Scheduler",
            "more": "",
            "devices": "cpu",
            "pending": "0 (no limit)",
            "in flight": "1 of 2",
            "tracked bytes": "3.9 KiB of 9.8 KiB",
        }
        statistics = rows(s.statistics())
        assert statistics["title"] == "Statistics"
        assert statistics["tasks submitted"] == "2"
        assert statistics["bytes retained"] == "3.9 KiB"
        assert statistics["max ops"] == "2"
        del x
        gate.set()
    assert rows(s)["title"] == "Scheduler(cpu; closed)"


async def test_a_tensor_that_is_pending(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        slow = await s.submit(held, gate, np.ones(2), shape=2, dtype=float, name="<b>slow</b>")
        found = rows(slow)
        assert found["state"] == "pending: <b>slow</b>"
        assert found["shape"] == "(2,)"
        assert "test_tables.py" in found["submitted at"]
        assert "<b>slow" not in slow._repr_html_()
        assert rows(slow + 1)["state"] == "pending: add"
        gate.set()
        assert (await settled(slow)).done()
        assert rows(slow)["more"] == "[1. 1.]"


async def test_a_tensor_that_failed(s):
    x = await settled(s.submit_nowait(fail, shape=2, dtype=float))
    found = rows(x)
    assert found["state"] == "failed: LookupError"
    assert found["more"] == ""
    with pytest.raises(LookupError):
        await x


async def test_a_preview_is_short_and_lets_nothing_out(s):
    x = await s.put(np.arange(250_000.0).reshape(500, 500))
    before = s.statistics()
    found = rows(x)["more"]
    assert s.statistics() == before
    assert len(found) < 1000
    assert found.startswith("[[0.00000e+00 1.00000e+00")
    deep = await s.put(np.zeros((2,) * 12, bool))
    assert rows(deep)["more"] == f"the first of {deep.shape[:-2]}:\n[[False False]\n [False False]]"
    assert rows(await s.put(np.zeros((3, 0))))["more"] == "[]"
    assert not value_of(x).escaped
