"""What opening a scheduler says where the driver is too old for this CuPy, or finds no GPU: in processes apart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OPEN = """
import asyncsched as asc

async def main():
    async with asc.Scheduler("cuda"):
        pass

asc.run(main)
"""


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (
            {"HOSTCUDA_DRIVER": "11040"},
            "the NVIDIA driver knows CUDA up to 11.4, too old for this CuPy, which is for CUDA 12: update it",
        ),
        ({"HOSTCUDA_DEVICES": "0"}, "CuPy finds no device: see what `nvidia-smi -L` lists"),
    ],
)
def test_it_says_what_is_missing(machine, said):
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | machine
    run = subprocess.run([sys.executable, "-c", OPEN], env=environment, capture_output=True, text=True, check=False)
    assert f"cuda:0 cannot be used: {said}. Or use" in run.stderr
