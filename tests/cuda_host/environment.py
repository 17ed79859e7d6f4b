"""A virtual environment in which CuPy's wheel finds a CUDA runtime in host memory, with compiled kernels."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from . import building
from .building import NATIVE, Tools

ROOT = Path(__file__).parents[2]
PACKAGES = [
    f"cupy-cuda12x=={building.CUPY}",
    "nvidia-cuda-runtime-cu12==12.9.*",  # of these two, the headers
    "nvidia-cuda-nvcc-cu12==12.9.*",
    "Cython>=3.2,<3.3",
    "setuptools",
]
RUN = """#!/bin/bash
# Runs a command with CuPy in host memory.
export LD_PRELOAD="{libraries}"
export HOSTCUDA_CACHE="{kernels}" CUPY_CACHE_DIR="{kernels}/cupy" CUPY_ACCELERATORS= PATH="{binaries}:$PATH"
exec "$@"
"""


def why_not() -> str | None:
    """Why it cannot be set up here, if so."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"needs Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
    missing = [tool for tool in ("g++", "nm") if shutil.which(tool) is None]
    return f"needs {' and '.join(missing)}" if missing else None


class Environment:
    """The environment in a directory.

    Attributes:
        runner: the command that runs others in it.
        kernels: where compiled kernels are kept.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self.runner = self._directory / "run"
        self.kernels = self._directory / "kernels"
        self._python = self._directory / "venv" / "bin" / "python"

    def set_up(self) -> None:
        """Make what is missing, or was made from other sources."""
        if not self._python.exists():
            venv.create(self._directory / "venv", with_pip=True)
        self._pip("install", *PACKAGES, "-e", f"{ROOT}[test,demos]")
        self._once("libraries", [*NATIVE.iterdir(), Path(building.__file__)], building.build)
        self._once("kernels_of", [NATIVE / "device.h", NATIVE / "nvrtc.cpp"], self._begin_kernels)
        text = RUN.format(
            libraries=" ".join(map(str, building.preloaded(self._directory))),
            kernels=self.kernels,
            binaries=self._python.parent,
        )
        self.runner.write_text(text)
        self.runner.chmod(0o755)

    def python(self, *arguments: object, **variables: str) -> int:
        """Run Python in it, in the checkout. Returns the exit status."""
        set_to = [f"{name}={value}" for name, value in variables.items()]
        command = ["env", *set_to, self.runner, self._python, *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, check=False).returncode

    def _pip(self, *arguments: str) -> None:
        subprocess.run([self._python, "-m", "pip", "-q", *arguments], check=True)

    def _once(self, name: str, sources: list[Path], make: Callable[[Tools], None]) -> None:
        """Make something unless that was done, from these very files."""
        found = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(sources))).hexdigest()
        done = self._directory / f"{name}.sha256"
        if not done.exists() or done.read_text() != found:
            done.unlink(missing_ok=True)
            make(Tools(self._directory, self._python))
            done.write_text(found)

    def _begin_kernels(self, tools: Tools) -> None:
        """What kernels are compiled with. Those of before are of no use any more."""
        shutil.rmtree(self.kernels, ignore_errors=True)
        self.kernels.mkdir()
        flags = ["-std=c++17", "-O1", "-fPIC", "-w", "-fpermissive", "-fvisibility=hidden", *tools.includes]
        (self.kernels / "flags").write_text(" ".join(flags))
        (self.kernels / "made_by").write_text(hashlib.sha256((NATIVE / "device.h").read_bytes()).hexdigest())
        header = Path(shutil.copy(NATIVE / "device.h", self.kernels))
        tools.run("g++", *flags, "-x", "c++-header", header, "-o", f"{header}.gch")
