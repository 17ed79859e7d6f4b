"""Everything that is run on CuPy in host memory, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from .environment import Environment

PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
STRICT_PROGRAMS = "60"


def run(environment: Environment) -> int:
    """Run all of it, and say what failed. Returns the exit status."""
    parts: Mapping[str, tuple[list[str], dict[str, str]]] = {
        "what is imitated, and what the library calls": ([*PYTEST, "-n", "0", "tests/cuda_host"], {}),
        "the tests for a card": ([*PYTEST, "-n", "2", "-m", "gpu"], {}),
        "random programs on a pool that keeps no freed block": (
            [*PYTEST, "-n", "2", "-p", "tests.cuda_host.strict", "-m", "gpu", "tests/gpu/test_programs.py"],
            {"ASYNCSCHED_CUDA_PROGRAMS": STRICT_PROGRAMS},
        ),
        "the benchmark, as a smoke run": (["-m", "bench.gpu", "--quick"], {}),
    }
    failed = []
    for name, (arguments, variables) in parts.items():
        print(f"-- {name}", flush=True)
        began = perf_counter()
        if environment.python(*arguments, **variables):
            failed.append(name)
        print(f"-- {perf_counter() - began:.0f} s", flush=True)
    print("-- all passed" if not failed else f"-- FAILED: {'; '.join(failed)}")
    return bool(failed)
