"""Builds the libraries of `native/`, and three modules of CuPy that are linked to them.

CuPy's wheel has the CUDA runtime linked statically into one module, and kernels of its own in two. So these three are
compiled from CuPy's unchanged source, and put in the place of the wheel's. Everything else is the wheel's, and finds
what it needs because the libraries are loaded before all others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
CUPY = "14.2.0"
RUNTIME = ["counting", "devices", "streams", "work", "events", "graphs", "memory", "kernels", "driver", "nvrtc"]
# What else CuPy looks for: empty libraries that lead to the runtime.
NAMES = [
    *("libcuda.so.1", "libcudart.so.12", "libnvrtc.so.12", "libcublasLt.so.12"),
    *("libcusparse.so.12", "libnvJitLink.so.12"),
]
MODULES = ["cupy_backends/cuda/api/runtime", "cupy/cuda/thrust", "cupy/random/_generator_api"]
CUBLAS, CUFFT, CUSOLVER = "libcublas.so.12", "libcufft.so.11", "libcusolver.so.11"
# Stubs: what they return. The libraries' codes for "not supported"; C++ functions return nothing.
CUDA_ABSENT, CUBLAS_ABSENT, CUFFT_ABSENT, CUSOLVER_ABSENT, CPP_ABSENT = 801, 15, 16, 9, 0
STANDARD = ("_ZNS", "_ZS", "_ZT", "_Zd", "_Zn")  # how names of C++'s own library begin
ASK = """
import numpy, sysconfig
print(*map(sysconfig.get_path, ("purelib", "include")), numpy.get_include(), sysconfig.get_config_var("EXT_SUFFIX"))
"""


def preloaded(directory: Path) -> list[Path]:
    """The libraries to be loaded before all others."""
    return [directory / "lib" / name for name in ("libhostcuda.so", *NAMES, CUBLAS, CUFFT, CUSOLVER)]


class Tools:
    """Compilers, and where they find headers.

    Attributes:
        site: where the environment's packages are.
        includes: for what is compiled as kernels are.
        work, lib: folders for what is made on the way, and for libraries.
    """

    def __init__(self, directory: Path, python: Path) -> None:
        site, python_h, numpy_h, self.suffix = subprocess.check_output([python, "-c", ASK], text=True).split()
        self.python, self.site = python, Path(site)
        self.work, self.lib, self.source = (directory / name for name in ("build", "lib", "cupy"))
        cupy_h, nvidia = self.site / "cupy" / "_core" / "include", self.site / "nvidia"
        folders = [cupy_h / "cupy" / "_cccl" / name for name in ("cub", "thrust", "libcudacxx")]
        self.cuda = [f"-I{nvidia / name / 'include'}" for name in ("cuda_runtime", "cuda_nvcc")]
        self.includes = [*(f"-I{folder}" for folder in (*folders, cupy_h)), *self.cuda]
        self.module_includes = [
            *self.includes,
            *(f"-I{folder}" for folder in (self.work, self.source, python_h, numpy_h)),
        ]

    def run(self, *command: object) -> None:
        """Run a command; raises with what it printed if it fails."""
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")

    def compiled(self, source: Path, *flags: object) -> Path:
        """An object file."""
        target = self.work / f"{source.parent.name}_{source.stem}.o"
        self.run("g++", "-std=c++17", "-O2", "-fPIC", "-w", "-fvisibility=hidden", *flags, "-c", source, "-o", target)
        return target

    def linked(self, name: str, parts: Sequence[object], *flags: object) -> Path:
        """A shared library of this name."""
        target = self.lib / name
        self.run("g++", "-shared", "-fPIC", *parts, "-o", target, f"-Wl,-soname,{name}", *flags)
        return target

    def stubs(self, name: str, needed: Sequence[Path], ours: Sequence[Path], prefix: str, returned: int) -> Path:
        """Functions of this prefix that some objects or libraries need and others do not define."""
        missing = self._symbols(needed, "U", prefix) - self._symbols(ours, "TtWw", prefix)
        line = 'extern "C" __attribute__((visibility("default"))) int {}() {{ return {}; }}\n'
        source = self.work / f"absent_{name}.cpp"
        source.write_text("".join(line.format(symbol, returned) for symbol in sorted(missing)))
        return self.compiled(source)

    def _symbols(self, files: Sequence[Path], kinds: str, prefix: str) -> set[str]:
        found = set()
        for file in files:
            options = ["-D"] if file.suffix == ".so" else []
            for line in subprocess.check_output(["nm", *options, file], text=True).splitlines():
                *_, kind, symbol = ["", *line.split()]
                if kind in kinds and symbol.startswith(prefix) and not symbol.startswith(STANDARD):
                    found.add(symbol.split("@")[0])
        return found


def build(tools: Tools) -> None:
    """Everything: the libraries, and the modules in their places."""
    for folder in (tools.work, tools.lib):
        folder.mkdir(exist_ok=True)
    _prepare(tools)
    runtime, thrust, generator, ours = _compile(tools)
    host = [ours[name] for name in RUNTIME]
    absent = tools.stubs("cuda", [runtime], host, "cuda", CUDA_ABSENT)
    tools.linked("libhostcuda.so", [*host, absent], "-lpthread", "-ldl")
    to_host = (f"-L{tools.lib}", "-Wl,--no-as-needed", "-lhostcuda", f"-Wl,-rpath,{tools.lib}")
    for name in NAMES:
        tools.linked(name, [], *to_host)
    solver, factors = ours["cusolver"], [ours["cublas"], ours["cusolver"]]
    _link_library(tools, CUBLAS, "cupy_backends/cuda/libs/cublas*.so", factors, CUBLAS_ABSENT, to_host)
    _link_library(tools, CUFFT, "cupy/cuda/cufft*.so", [ours["cufft"]], CUFFT_ABSENT, to_host)
    _link_library(tools, CUSOLVER, "cupy*/**/*cusolver*.so", [solver], CUSOLVER_ABSENT, to_host)
    _put(tools, MODULES[0], [runtime], to_host)
    _put(tools, MODULES[1], [thrust, ours["thrust"]], to_host)
    absent = tools.stubs("random", [generator], [ours["random"]], "_Z", CPP_ABSENT)
    _put(tools, MODULES[2], [generator, ours["random"], absent], to_host)


def _prepare(tools: Tools) -> None:
    """C++ from CuPy's modules, and two headers as far as they need them."""
    profiler = "cudaError_t cudaProfilerStart(void); cudaError_t cudaProfilerStop(void);"
    (tools.work / "cuda_profiler_api.h").write_text(f'extern "C" {{ {profiler} }}\n')
    states = [f"struct curandState{kind} {{ char bytes[64]; }};\n" for kind in ("", "MRG32k3a", "Philox4_32_10_t")]
    (tools.work / "curand_kernel.h").write_text("".join(states))  # CuPy asks for the sizes alone
    source = Path(__file__).with_name("cupy_source.py")
    tools.run(tools.python, source, CUPY, tools.source, *[f"{module}.pyx" for module in MODULES])


def _compile(tools: Tools) -> tuple[Path, Path, Path, dict[str, Path]]:
    """CuPy's modules, and all of `native/`, on all processors."""

    def module(name: str) -> Path:
        source = tools.source / f"{name}.cpp"
        flags = ("-O1", "-D_FORCE_INLINES=1", '-DCYTHON_EXTERN_C=extern "C"')
        return tools.compiled(source, *flags, *tools.module_includes, f"-I{source.parent}")

    (found,) = tools.site.glob("numpy.libs/libscipy_openblas64_*.so")
    lapack = f'-DLAPACK="{found}"'
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        modules = [pool.submit(module, name) for name in MODULES]  # first: they take longest
        ours = {
            file.stem: pool.submit(tools.compiled, file, "-O3", "-g1", lapack, *tools.cuda)
            for file in NATIVE.glob("*.cpp")
        }
        runtime, thrust, generator = (job.result() for job in modules)
        return runtime, thrust, generator, {name: job.result() for name, job in ours.items()}


def _link_library(tools: Tools, name: str, users: str, ours: Sequence[Path], code: int, to_host: Sequence[str]) -> None:
    """A library of CUDA's: what is ours, and stubs for what else its users in CuPy need."""
    prefix = name.split(".")[0].removeprefix("lib")
    absent = tools.stubs(prefix, list(tools.site.glob(users)), ours, prefix, code)
    names = tools.work / f"{prefix}.map"
    names.write_text(f"{name} {{ global: *; }};")  # the version that its symbols are asked for with
    tools.linked(name, [*ours, absent], f"-Wl,--version-script,{names}", "-ldl", *to_host)


def _put(tools: Tools, module: str, parts: Sequence[Path], to_host: Sequence[str]) -> None:
    """Link a module, and put it in the place of the wheel's."""
    made = tools.linked(f"{Path(module).name}.so", parts, *to_host)
    place = tools.site / f"{module}{tools.suffix}"
    place.unlink(missing_ok=True)  # not written over: a process may have it open
    shutil.move(made, place)
