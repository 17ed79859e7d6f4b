"""What this machine offers: devices with their memory, versions, and a command for each missing part."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from threadpoolctl import threadpool_info

from ._arguments import format_bytes
from .devices.cuda import requirements
from .devices.host.allowed import allowed_processors

Line = tuple[str, str]
_ROOM = 256 << 20  # bytes; with less, the libraries and kernels hardly fit. A guess

# Optional software: its name, its package, the extra that installs it, and its purpose.
EXTRAS = (
    ("uvloop", "uvloop", "uvloop", "a quicker event loop"),
    ("numba", "numba", "numba", "quicker kernels"),
    ("safetensors", "safetensors", "safetensors", "to save and load states"),
    ("rich", "rich", "live", "to watch a scheduler in the terminal"),
    ("OpenTelemetry", "opentelemetry-api", "otel", "spans of scopes and tasks"),
    ("Prometheus", "prometheus-client", "serving", "a server's /metrics"),
    ("ittapi", "ittapi", "vtune", "tasks in VTune"),
    ("Dask", "distributed", "cluster", "its collections, its workers"),
)


_SECTIONS = """\
without a command, three sections:
  devices     what Scheduler("cpu"), Scheduler("cuda:0"), ... compute on, and the memory there. The processors
              are those that this process may use, by its affinity and the container's quota
  software    versions of the installed software that asyncsched uses
  to install  missing software, and the command that installs it
"""


def main(arguments: list[str]) -> str:
    """The text that a command prints.

    Raises:
        SystemExit: for an unknown command, and for `--help`.
    """
    if not arguments:
        return describe()
    from . import _reference
    from .gpu_check import command as gpu_check
    from .observe import blocked, replan, report

    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m asyncsched", description=__doc__, epilog=_SECTIONS, formatter_class=form
    )
    commands = parser.add_subparsers(title="commands, each with a --help of its own", metavar="COMMAND", required=True)
    modules = {"explain": blocked, "trace": report, "replan": replan, "docs": _reference, "gpu-check": gpu_check}
    for name, module in modules.items():
        command = commands.add_parser(
            name, help=module.HELP, description=f"Gives {module.HELP}.\n\n{module.PRINTS}", formatter_class=form
        )
        module.add_arguments(command)
        command.set_defaults(report=module.report, command=command)
    options = parser.parse_args(arguments)
    try:
        text: str = options.report(options)
    except (OSError, ValueError, ImportError) as error:
        options.command.error(str(error))
    return text


def describe() -> str:
    """Devices with their memory, versions, and a command for each missing part: aligned text in several lines."""
    sections = {"devices": [*_cpu(), *_gpus()], "software": list(_software()), "to install": list(_missing())}
    width = max(len(name) for lines in sections.values() for name, _ in lines)
    text = [f"asyncsched {_version('asyncsched') or '(not installed)'}"]
    for heading, lines in sections.items():
        if lines:
            text += ["", heading, *(f"  {name:{width}}  {value}" for name, value in lines)]
    return "\n".join(text)


def _cpu() -> Iterator[Line]:
    memory = _host_memory()
    sizes = f", {_sizes(memory['MemTotal'], memory['MemAvailable'])}" if memory else ""
    yield "cpu", f"{allowed_processors()} processors{sizes}"


def _host_memory() -> dict[str, int]:
    """The host's memory in bytes, on Linux; empty elsewhere."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":") for line in file)
    except OSError:
        return {}
    return {name: int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")}


def _gpus() -> Iterator[Line]:
    lacks = [lack for lack in requirements.missing() if lack.name != "CUDA libraries"]
    if lacks:
        yield "cuda", f"none: {lacks[0].how}"
        return
    import cupy

    runtime = cupy.cuda.runtime
    for number in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(number)
        name, capability = found["name"].decode(), f"{found['major']}.{found['minor']}"
        try:
            with cupy.cuda.Device(number):
                free, total = runtime.memGetInfo()
        except runtime.CUDARuntimeError as error:
            lack = requirements.refused(error)
            yield f"cuda:{number}", f"{name}, not usable: {lack.how}: {lack.cure}"
            continue
        room = "" if free >= _ROOM else ", too little: `nvidia-smi` lists the processes that use the rest"
        alone = ", the only MIG slice that a process sees" if "MIG" in name else ""
        yield f"cuda:{number}", f"{name}, compute capability {capability}, {_sizes(total, free)}{room}{alone}"


def _software() -> Iterator[Line]:
    system = "WSL" if requirements.wsl() else platform.system()
    yield "Python", f"{platform.python_version()}, {system} {platform.machine()}"
    yield "event loop", "uvloop" if _version("uvloop") else "asyncio"
    yield "NumPy", np.__version__
    for blas in threadpool_info():
        if blas["user_api"] == "blas":
            yield "BLAS", f"{blas['internal_api']} {blas['version']}, {blas['num_threads']} threads"
    cupy = requirements.cupy()
    if cupy is not None:
        yield "CuPy", f"{cupy.__version__}, for CUDA {requirements.dotted(cupy.cuda.runtime.runtimeGetVersion())}"
    if driver := requirements.driver():
        yield "NVIDIA driver", f"for CUDA up to {requirements.dotted(driver)}"
    for name, package in [*((name, package) for name, package, *_ in EXTRAS), ("PyTorch", "torch")]:
        if found := _version(package):
            yield name, found


def _missing() -> Iterator[Line]:
    for lack in requirements.missing():
        yield lack.name, lack.cure
    for name, package, extra, purpose in EXTRAS:
        if not _version(package) and (name != "uvloop" or sys.platform != "win32"):
            yield name, f'pip install "asyncsched[{extra}]" ({purpose})'
    if not _version("torch"):
        yield "PyTorch", "pip install torch (tasks may run its modules; nothing here needs it)"


def _version(package: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _sizes(total: int, free: int) -> str:
    return f"{format_bytes(total)} of memory, {format_bytes(free)} free"


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # the terminal may support only ASCII
    print(main(sys.argv[1:]))
