"""What CUDA needs of a machine: NVIDIA's driver, CuPy, and the parts of the CUDA toolkit that compile kernels."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from contextlib import suppress
from typing import Any, Final, NamedTuple

from .driver import NAME, initialize

_COMPILES_HEADERS_ONCE: Final = "CUPY_NVRTC_USE_PCH"  # read by CuPy when it is imported


class Missing(NamedTuple):
    """Something that is missing, how that shows, and what to do about it."""

    name: str
    how: str
    cure: str


def usable() -> bool:
    """Whether CuPy is installed and finds a device. Makes no noise."""
    found = cupy()
    if found is None:
        return False
    initialize()
    return bool(found.cuda.is_available())


def missing() -> list[Missing]:
    """What is missing here, if anything is, in the order in which it is to be installed."""
    known, found = driver(), cupy()
    lacks = []
    if not known:
        cure = "install it, where there is an NVIDIA GPU (a container gets it by `--gpus all`)"
        lacks.append(Missing("NVIDIA driver", "no NVIDIA driver found", cure))
    if found is None:
        extra = "cuda13" if known >= 13_000 else "cuda12"
        return [*lacks, Missing("CuPy", "CuPy is not installed", f'pip install "asyncsched[{extra}]"')]
    made_for = found.cuda.runtime.runtimeGetVersion() // 1000
    wheel = f"cupy-cuda{made_for}x"
    if known and known // 1000 < made_for:
        how = f"the NVIDIA driver knows CUDA up to {dotted(known)}, too old for this CuPy, which is for CUDA {made_for}"
        older = f' or: pip uninstall {wheel} && pip install "asyncsched[cuda12]"' if known >= 12_000 else ""
        lacks.append(Missing("NVIDIA driver", how, f"update it{older}"))
    elif known and not usable():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        how = "CuPy finds no device" + ("" if hidden is None else f", and CUDA_VISIBLE_DEVICES is {hidden!r}")
        lacks.append(Missing("GPU", how, "see what `nvidia-smi -L` lists"))
    if known and not _compiles(found.cuda):
        lacks.append(Missing("CUDA libraries", "CuPy finds no NVRTC or no cuBLAS", f'pip install "{wheel}[ctk]"'))
    return lacks


def cupy() -> Any:
    """CuPy, if it is installed.

    Imported here it compiles headers once on each thread (NVRTC from 12.8 on), unless it is told not to. To compile a
    reduction takes 0.5 to 0.9 s then, but for the first, in place of 3 to 4 s.
    """
    ours = "cupy" not in sys.modules and _COMPILES_HEADERS_ONCE not in os.environ
    if ours:
        os.environ[_COMPILES_HEADERS_ONCE] = "1"
    try:
        return importlib.import_module("cupy")
    except ImportError:
        return None
    finally:
        if ours:
            os.environ.pop(_COMPILES_HEADERS_ONCE, None)


def driver() -> int:
    """The newest CUDA that the NVIDIA driver knows, as 1000 * major + 10 * minor; 0 without a driver."""
    if usable():
        return int(cupy().cuda.runtime.driverGetVersion())
    found = ctypes.c_int(0)
    with suppress(OSError):
        ctypes.CDLL(NAME).cuDriverGetVersion(ctypes.byref(found))
    return found.value


def dotted(version: int) -> str:
    """CUDA's version as people write it."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _compiles(cuda: Any) -> bool:
    """Whether CuPy finds what its wheel does not contain: the compiler, and the library of matrix products."""
    try:
        return bool(cuda.nvrtc.getVersion() and cuda.cublas)
    except Exception:  # each loader has an error of its own
        return False
