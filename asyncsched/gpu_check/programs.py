"""Every program by its name, in the order in which they run. The first one describes the machine."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Final

from ..devices.cuda import requirements
from . import libraries, probes, rates
from .entries import CHECKOUT, ROOT, NotHere, Program, Report

_SETTINGS: Final = re.compile("(CUPY|CUDA|CUBLAS|NVIDIA|NVRTC|NCCL|PYTORCH|ASYNCSCHED|HOSTCUDA)_|LD_LIBRARY_PATH")
_PACKAGES: Final = re.compile("asyncsched|cupy|nvidia|cuda|numpy|torch|jax|numba|uvloop", re.IGNORECASE)
_PRIVATE: Final = {"uuid", "luid"}  # properties that identify a device: left out, since nobody needs them
_IDENTIFIES: Final = re.compile(r".*(UUID|Serial|GUID|Board ID|Hostname).*\n")
_NVML: Final = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


def machine(report: Report) -> None:
    """The device, driver and versions, and the settings of CUDA and CuPy."""
    report.tell("commit", _commit())
    report.tell("system", f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    report.tell("settings", {name: value for name, value in os.environ.items() if _SETTINGS.match(name)})
    report.tell("all that it needs", _installs())
    report.tell("driver's release", _release())
    report.tell("core files", _core_files())
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


def state(report: Report) -> None:
    """The devices' clocks, temperatures, errors, and the processes that use them; and errors that the kernel noted."""
    run = partial(subprocess.run, capture_output=True, text=True, errors="replace", timeout=15, check=False)
    with suppress(OSError):
        print(*[line for line in run(["dmesg"]).stdout.splitlines(keepends=True) if "Xid" in line], sep="", end="")
    try:
        found = run(["nvidia-smi", "-q"])
    except OSError as error:
        raise NotHere(f"nvidia-smi: {error.strerror}") from None
    print(_IDENTIFIES.sub("", found.stdout + found.stderr))


def _installs() -> str:
    """The command that installs all that `gpu-check` needs."""
    extra = "cuda13" if requirements.driver() >= 13_000 else "cuda12"
    if CHECKOUT:
        return f'pip install -e ".[{extra},test]"'
    return f'pip install "asyncsched[{extra}]"; the groups test and bench need a checkout'


def _release() -> str:
    """The driver's version, by the library that `nvidia-smi` asks, too."""
    text = ctypes.create_string_buffer(96)
    with suppress(OSError, AttributeError):
        nvml = ctypes.CDLL(_NVML)
        if nvml.nvmlInit_v2() == nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            return text.value.decode()
    return "not known"


def _core_files() -> str:
    """How large a core file may be, and where it would go."""
    try:
        resource = import_module("resource")
        pattern = Path("/proc/sys/kernel/core_pattern").read_text("utf-8").strip()
    except (ImportError, OSError):
        return "not known"
    return f"{' of '.join(map(str, resource.getrlimit(resource.RLIMIT_CORE)))} bytes (-1: any), {pattern}"


def _commit() -> str:
    """The revision of a checkout, and whether it was changed; or the origin that pip noted."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError, PackageNotFoundError):
        if not CHECKOUT:
            return distribution("asyncsched").read_text("direct_url.json") or "from the package index"
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return "not known"


GROUPS: Final[Mapping[str, Mapping[str, Program]]] = {
    "machine": {"machine": machine, "before": state, **rates.FIRST},
    "probe": {**probes.PROBES, **libraries.PROBES},
    "rate": rates.RATES,
}
AFTER: Final[Mapping[str, Program]] = {"after": state}
