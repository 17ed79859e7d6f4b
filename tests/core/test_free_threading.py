"""What a build without the global lock asks for. Most of it can only be seen on such a build; `.ci/run` makes one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from asyncsched._core import free_threading
from asyncsched._core.free_threading import FREE_THREADED, MERGES, merge, merged_at_birth

free_threaded = pytest.mark.skipif(not FREE_THREADED, reason="this Python is built with the GIL")


class Thing:
    pass


def ends_at_once(thing: list[Any]) -> bool:
    """Whether a thing that this thread made ends as soon as another thread drops it, while this one waits in C."""
    ended = threading.Event()
    weakref.finalize(thing[0], ended.set)
    found: list[bool] = []

    def drop() -> None:
        thing.clear()
        found.append(ended.is_set())

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    return found[0]


def test_the_build_decides_and_not_whether_the_lock_is_used() -> None:
    assert FREE_THREADED is bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    for gil in ("0", "1") if FREE_THREADED else ():
        code = "from asyncsched._core.free_threading import FREE_THREADED, MERGES; assert FREE_THREADED and MERGES"
        subprocess.run([sys.executable, "-X", f"gil={gil}", "-c", code], check=True)


def test_on_a_build_with_the_lock_nothing_is_in_the_way() -> None:
    def make() -> Thing:
        return Thing()

    assert (merged_at_birth(make) is make) is not FREE_THREADED
    assert not MERGES or FREE_THREADED
    assert isinstance(merged_at_birth(make)(), Thing)


def test_what_was_merged_ends_with_its_last_reference_on_any_thread() -> None:
    thing = [Thing()]
    merge(thing[0])
    assert ends_at_once(thing) or not MERGES
    array = [merged_at_birth(np.empty)(5)]
    assert ends_at_once(array) or not MERGES


@free_threaded
def test_counts_stay_right_when_they_are_merged() -> None:
    assert MERGES, "the layout of this version is known"
    for holders in range(5):
        thing = Thing()
        held = [thing] * holders
        before = sys.getrefcount(thing)
        merge(thing)
        assert sys.getrefcount(thing) == before
        merge(thing)  # a second time: nothing
        assert sys.getrefcount(thing) == before
        gone = weakref.ref(thing)
        del thing
        assert (gone() is None) is (not holders)
        held.clear()
        assert gone() is None


@free_threaded
def test_what_is_not_this_threads_alone_is_left_as_it_is() -> None:
    for immortal in (None, (), 1, "a"):
        before = sys.getrefcount(immortal)
        merge(immortal)
        assert sys.getrefcount(immortal) == before
    made: list[Thing] = []
    thread = threading.Thread(target=lambda: made.append(Thing()))
    thread.start()
    thread.join()
    thing = made.pop()
    before = sys.getrefcount(thing)
    merge(thing)
    assert sys.getrefcount(thing) == before
    gone = weakref.ref(thing)
    del thing
    assert gone() is None


@free_threaded
def test_where_the_layout_is_not_known_nothing_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_threading, "_TRIED", ())
    assert not free_threading._as_expected()
