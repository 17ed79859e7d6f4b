"""Everything that is run on CuPy in host memory, one after the other."""

from __future__ import annotations

from time import perf_counter

from .environment import Environment

PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
CARD = [*PYTEST, "-n", "2", "-m", "gpu", "-p", "tests.cuda_host.deadline"]
PARTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "what is imitated, and what the library calls": ([*PYTEST, "-n", "0", "tests/cuda_host"], {}),
    "the tests for a card": (CARD, {}),
    "random programs on a pool that keeps no freed block": (
        [*CARD, "-p", "tests.cuda_host.strict", "tests/gpu/test_programs.py"],
        {"ASYNCSCHED_CUDA_PROGRAMS": "60"},
    ),
    "the benchmark, as a smoke run": (["-m", "bench", "gpu", "--quick"], {}),
}


def run(environment: Environment, seconds: float) -> int:
    """Run all of it, and say what failed. Returns the exit status.

    Args:
        seconds: for the tests for a card, which compile thousands of kernels when they are first run.
    """
    failed = []
    for name, (arguments, variables) in PARTS.items():
        print(f"-- {name}", flush=True)
        began = perf_counter()
        if environment.python(*arguments, **variables, HOSTCUDA_SECONDS=str(seconds)):
            failed.append(name)
        print(f"-- {perf_counter() - began:.0f} s", flush=True)
    print(f"-- FAILED: {'; '.join(failed)}" if failed else "-- all passed")
    return bool(failed)
