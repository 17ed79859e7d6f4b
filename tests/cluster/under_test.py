"""A plugin for pytest by which another library's tests compute on the scheduler that DASK_TESTS_ON names."""

from __future__ import annotations

import os

import dask
from dask.base import named_schedulers
from dask.threaded import get as threads

import asyncsched.cluster

SCHEDULERS = {"asyncsched": asyncsched.cluster.get, "threads": threads}


def pytest_configure() -> None:
    get = SCHEDULERS[os.environ["DASK_TESTS_ON"]]
    dask.config.set(scheduler=get)
    for name in (
        "sync",
        "synchronous",
        "single-threaded",
        "threads",
        "threading",
    ):  # by which most of the tests compute
        named_schedulers[name] = get
