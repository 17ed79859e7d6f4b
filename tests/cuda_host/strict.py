"""A pytest plugin: each allocation of a scheduler has a block of its own, see `asyncsched.gpu_check.libraries`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncsched.gpu_check.libraries import Block, one_for_each

one_for_each()


@pytest.fixture(autouse=True)
def in_use() -> Iterator[None]:
    before = Block.made
    yield
    assert Block.made > before, "no memory came from here"
