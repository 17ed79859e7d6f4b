"""Each test of the background scheduler begins with none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from asyncsched.cluster import compute


@pytest.fixture
def kept() -> Iterator[Any]:
    """Nothing open before, nor after."""
    before = compute._kept.replace({"device": "cpu", "streams": 2})
    yield compute._kept
    compute._kept.replace(before)
