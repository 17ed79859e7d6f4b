"""Every program by its name, in the order in which they run. The first one describes the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, distributions
from typing import Final

from ..devices.cuda import requirements
from . import probes, rates
from .entries import ROOT
from .telling import NotHere, Program, Report

_SETTINGS: Final = re.compile("(CUPY|CUDA|CUBLAS|NVIDIA|NVRTC|NCCL|PYTORCH|ASYNCSCHED|HOSTCUDA)_|LD_LIBRARY_PATH")
_PACKAGES: Final = re.compile("asyncsched|cupy|nvidia|cuda|numpy|torch|jax|numba|uvloop", re.IGNORECASE)
_PRIVATE: Final = {"uuid", "luid"}  # properties that identify a device: left out, since nobody needs them


def machine(report: Report) -> None:
    """The device, driver and versions, and the settings of CUDA and CuPy."""
    report.tell("commit", _commit())
    report.tell("system", f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    report.tell("settings", {name: value for name, value in os.environ.items() if _SETTINGS.match(name)})
    report.tell("packages", {d.name: d.version for d in distributions() if _PACKAGES.match(d.name or "")})
    if lacks := requirements.missing():
        raise NotHere("; ".join(f"{lack.how}: {lack.cure}" for lack in lacks))
    import cupy

    runtime = cupy.cuda.runtime
    report.tell("CuPy", f"{cupy.__version__}, for CUDA {requirements.dotted(runtime.runtimeGetVersion())}")
    report.tell("driver", f"for CUDA up to {requirements.dotted(runtime.driverGetVersion())}")
    for number in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(number)
        named = f"{found['name'].decode()}, compute capability {found['major']}.{found['minor']}"
        report.tell(f"cuda:{number}", f"{named}, PCI {runtime.deviceGetPCIBusId(number)}")
        report.tell(f"properties of cuda:{number}", {k: v for k, v in found.items() if k not in _PRIVATE})
    with suppress(ImportError, AttributeError):  # not in every version
        report.tell("libraries", str(import_module("cupyx").get_runtime_info()).splitlines())


def _commit() -> str:
    """The revision of a checkout, and whether it was changed; or the origin that pip noted."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError, PackageNotFoundError):
        if not (ROOT / "bench" / "gpu").is_dir():
            return distribution("asyncsched").read_text("direct_url.json") or "from the package index"
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return "not known"


GROUPS: Final[Mapping[str, Mapping[str, Program]]] = {
    "machine": {"machine": machine, **rates.FIRST},
    "probe": probes.PROBES,
    "rate": rates.RATES,
}
