"""What `asyncsched` shows: the public names and no others, some of which load when they are first used."""

from __future__ import annotations

import pydoc
import types
from importlib import metadata

import pytest

import asyncsched as asc
from tests.processes import fresh

ROOMS = {"array_api", "autograd", "cluster", "devices", "fft", "linalg", "nn", "observe", "optim", "random", "serving"}
NOT_LOADED_AT_ONCE = {"asyncsched.autograd", "asyncsched.flow.batcher", "asyncsched.flow.pipeline", "asyncsched.nn"}
NOT_LOADED_AT_ONCE |= {"asyncsched.array_api", "asyncsched.observe", "asyncsched.optim", "asyncsched.serving"}


def test_dir_shows_the_public_names_alone():
    shown = {name for name in dir(asc) if not name.startswith("__")}
    assert shown == {*asc.__all__, "open"}  # which the star does not bring: it would hide Python's
    assert len(asc.__all__) == len(shown) - 1
    assert {name for name in shown if isinstance(getattr(asc, name), types.ModuleType)} == ROOMS
    assert not [name for name in shown if name.startswith("_")]


def test_every_public_name_is_there():
    for name in asc.__all__:
        assert getattr(asc, name) is getattr(asc, name)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'asyncsched' has no attribute 'sheduler'"):
        asc.sheduler  # noqa: B018


def test_some_rooms_load_when_they_are_first_named():
    loaded = set(fresh("import sys, asyncsched; print(*sys.modules)").split())
    assert not loaded & NOT_LOADED_AT_ONCE
    assert "asyncsched.nn" in fresh("import sys; from asyncsched import nn; print(*sys.modules)").split()
    assert "asyncsched.optim" in fresh("import sys, asyncsched; asyncsched.optim.SGD; print(*sys.modules)").split()


def test_a_gradient_loads_what_it_needs():
    code = """
import numpy, asyncsched as asc
async def main():
    async with asc.Scheduler("cpu") as s:
        x = await s.put(numpy.ones(3))
        x.requires_grad = True
        (x * x).sum().backward()
        return await x.grad
print(*asc.run(main))
"""
    assert fresh(code) == "2.0 2.0 2.0\n"


def test_the_star_brings_what_all_says():
    names: dict[str, object] = {}
    exec("from asyncsched import *", names)
    assert set(asc.__all__) <= set(names)


def test_the_version_is_that_of_the_distribution():
    assert asc.__version__ == metadata.version("asyncsched")


def test_help_finds_its_way():
    text = pydoc.render_doc(asc, renderer=pydoc.plaintext)
    assert "class Scheduler" in text
    assert "class Batcher" in text
    assert "_autograd" not in text.partition("PACKAGE CONTENTS")[0] + text.partition("CLASSES")[2]
