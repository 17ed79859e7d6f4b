"""What the probes give each operation of the table."""

from __future__ import annotations

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.gpu_check.arguments import ROWS, arguments
from asyncsched.gpu_check.libraries import captured
from asyncsched.ops.table import TABLE

pytestmark = pytest.mark.one_loop


async def test_each_operation_takes_its_arguments():
    async with asc.Scheduler("cpu") as s:
        for name in TABLE:
            operands, options = arguments(name)
            tensors = [await s.put(a) for a in operands if isinstance(a, np.ndarray)]
            for found in await asc.gather(*captured(name, operands, options)(*tensors)):
                assert np.isfinite(found).all(), name


def test_rows_are_of_operations():
    assert {name for names in ROWS for name in names.split()} <= TABLE.keys()
