"""The requirements of CUDA: NVIDIA's driver, CuPy, and the parts of the CUDA toolkit that compile kernels."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from contextlib import suppress
from typing import Any, Final, NamedTuple

from .driver import initialize, version

_COMPILES_HEADERS_ONCE: Final = "CUPY_NVRTC_USE_PCH"  # read by CuPy when it is imported
_DRIVER: Final = "install it, where there is an NVIDIA GPU (a container gets it by `--gpus all`)"
_ON_WINDOWS: Final = "install it on Windows, and none in WSL; then `wsl --shutdown`"
_SMI: Final = "see what `nvidia-smi -L` lists"
_NO_DEVICE: Final = 100  # cudaErrorNoDevice
# The errors of CUDA's first calls, by the numbers of cudaError_t in driver_types.h: how they show, and the cure.
_REFUSALS: Final = {
    2: ("the device has no room", "end other programs that use it: `nvidia-smi` lists them"),
    3: (
        "CUDA cannot begin in this process: it was forked after its parent began to use CUDA",
        "use multiprocessing's 'spawn' method",
    ),
    46: ("another process has the device alone", "end it, or share the device: `nvidia-smi -c DEFAULT`"),
    _NO_DEVICE: ("CuPy finds no device", f"{_SMI}; in MIG mode a device needs slices"),
    802: ("CUDA is not ready yet", "where there is NVSwitch: `systemctl start nvidia-fabricmanager`"),
    803: ("the NVIDIA driver and its libraries are of different versions", "restart the machine, or the container"),
    804: ("CUDA's forward compatibility does not serve this device", "take cuda-compat off LD_LIBRARY_PATH"),
    999: ("the NVIDIA driver fails", "restart the machine; `dmesg | grep -i xid` says more"),
}


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
    """The things that are missing here, in the order in which to install them."""
    known, found = driver(), cupy()
    lacks = []
    if not known:
        lacks.append(Missing("NVIDIA driver", "no NVIDIA driver found", _ON_WINDOWS if wsl() else _DRIVER))
    if found is None:
        extra = "cuda13" if known >= 13_000 else "cuda12"
        return [*lacks, Missing("CuPy", "CuPy is not installed", f'pip install "asyncsched[{extra}]"')]
    made_for = found.cuda.runtime.runtimeGetVersion() // 1000
    wheel = f"cupy-cuda{made_for}x"
    if known and known // 1000 < made_for:
        how = f"the NVIDIA driver knows CUDA up to {dotted(known)}, too old for this CuPy, which is for CUDA {made_for}"
        older = f' or: pip uninstall {wheel} && pip install "asyncsched[cuda12]"' if known >= 12_000 else ""
        lacks.append(Missing("NVIDIA driver", how, f"update it{older}"))
    elif known and (refusal := _refusal(found)):
        lacks.append(refusal)
    if known and not _compiles(found.cuda):
        lacks.append(Missing("CUDA libraries", "CuPy finds no NVRTC or no cuBLAS", f'pip install "{wheel}[ctk]"'))
    return lacks


def refused(error: Exception) -> Missing:
    """The meaning of an error of CUDA's first calls on a machine or on a device."""
    status = getattr(error, "status", 0)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if status != _NO_DEVICE or hidden is None:
        return Missing("GPU", *_REFUSALS.get(status, (f"CUDA refuses: {error}", _SMI)))
    how = f"CuPy finds no device, and CUDA_VISIBLE_DEVICES is {hidden!r}"
    return Missing("GPU", how, "unset it, or name devices or MIG slices that `nvidia-smi -L` lists")


def wsl() -> bool:
    """Whether this is Linux inside Windows, which has the driver."""
    return "microsoft" in platform.release().lower()


def cupy() -> Any:
    """CuPy, if it is installed.

    When it is imported here, it compiles headers once on each thread (NVRTC from 12.8 on), unless that is switched off.
    Then a reduction compiles in 0.5 to 0.9 s, except the first, instead of 3 to 4 s.
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
        with suppress(RuntimeError):  # in the child of a fork
            return int(cupy().cuda.runtime.driverGetVersion())
    return version()


def _refusal(cupy: Any) -> Missing | None:
    """Why CuPy finds no device, if it finds none."""
    runtime = cupy.cuda.runtime
    try:
        return None if runtime.getDeviceCount() else Missing("GPU", *_REFUSALS[_NO_DEVICE])
    except runtime.CUDARuntimeError as error:
        return refused(error)


def dotted(version: int) -> str:
    """CUDA's version as people write it."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _compiles(cuda: Any) -> bool:
    """Whether CuPy finds the libraries that its wheel does not contain: the compiler, and cuBLAS."""
    try:
        return bool(cuda.nvrtc.getVersion() and cuda.cublas)
    except Exception:  # each loader has an error of its own
        return False
