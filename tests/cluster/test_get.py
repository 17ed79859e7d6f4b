"""Graphs of Dask's on a scheduler of asyncsched's: what they compute, and within what bounds."""

from __future__ import annotations

import pytest

dask = pytest.importorskip("dask")
from dask.utils_test import GetFunctionTestMixin  # noqa: E402

from asyncsched import cluster  # noqa: E402


class TestDasksOwn(GetFunctionTestMixin):
    get = staticmethod(cluster.get)
