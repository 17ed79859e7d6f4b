"""Whether NVIDIA's compiler takes our kernels, and whether a fused kernel has the bits of CuPy's: the machine code of
each loop with and without fused multiply-adds.

CuPy compiles its kernels so that NVRTC may contract a product and a sum within an operation; fused ones must not, since
it could contract across operations. Where the machine code is the same both ways, so are the bits. Needs NVIDIA's
compiler and headers, no GPU: pip install cupy-cuda12x nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12
nvidia-cuda-nvcc-cu12
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncsched.devices.cuda import expressions, fused
from asyncsched.devices.cuda.expressions import Names, NotElementwise, private
from asyncsched.ops.kernels import windows
from asyncsched.ops.meta import meta
from asyncsched.ops.op import plan
from asyncsched.ops.program import Ref, ref
from asyncsched.ops.table import TABLE

# Other code both ways, and yet the same bits for a million numbers from 1e-4 to 100 (for arccos and arctanh, over 100
# and 101): NVRTC's PTX, both ways, was translated to C++ and run on a processor.
SAME_BITS = {
    "cupy_arccos d", "cupy_arccosh d", "cupy_arcsinh d", "cupy_arctanh d", "cupy_exp2 d", "cupy_log d", "cupy_log10 d",
    "cupy_log1p d", "cupy_log2 d",
}  # fmt: skip
AT_ONCE = 40  # loops of one source


def folder(name: str) -> Path:
    """Where a package of NVIDIA's is."""
    spec = find_spec(f"nvidia.{name}") if find_spec("nvidia") else None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"needs nvidia-{name.replace('_', '-')}-cu12; a GPU is not needed")
    return Path(next(iter(spec.submodule_search_locations)))


class Compiler:
    """NVRTC itself: the function `nvrtcGetCUBIN` and those on the way there."""

    def __init__(self, library: Path, includes: list[str]) -> None:
        self._nvrtc = ctypes.CDLL(str(library))
        self._includes = includes

    def compile(self, source: str, *options: str) -> dict[str, bytes]:
        """The machine code of each kernel, by name."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"loops", 0, None, None)
        given = [option.encode() for option in (*self._includes, *options)]
        try:
            self._call("nvrtcCompileProgram", program, len(given), (ctypes.c_char_p * len(given))(*given))
        except RuntimeError as error:
            raise RuntimeError(self._text("ProgramLog", program).decode()[:2000]) from error
        found = self._text("CUBIN", program)
        self._call("nvrtcDestroyProgram", ctypes.byref(program))
        return dict(kernels_in(found))

    def _text(self, what: str, program: Any) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw

    def _call(self, name: str, *args: Any) -> None:
        if status := getattr(self._nvrtc, name)(*args):
            raise RuntimeError(f"{name}: {status}")


def kernels_in(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """The sections `.text.NAME` of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    for name, _, _, _, start, length in sections:
        begin = sections[names][4] + name
        text = elf[begin : elf.index(b"\0", begin)].decode()
        if text.startswith(".text."):
            yield text.removeprefix(".text."), elf[start : start + length]


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="needs CuPy; a GPU is not needed")


@pytest.fixture(scope="module")
def compiler(cupy: Any) -> Compiler:
    """With CuPy's options and headers."""
    headers = Path(cupy.__file__).parent / "_core" / "include"
    found = [headers / "cupy" / "_cccl" / name for name in ("cub", "thrust", "libcudacxx")]
    found += [headers, *[folder(name) / "include" for name in ("cuda_runtime", "cuda_nvcc")]]
    options = ["--std=c++17", "--device-as-default-execution-space", "-ftz=true", *[f"-I{one}" for one in found]]
    return Compiler(next(iter((folder("cuda_nvrtc") / "lib").glob("libnvrtc.so.*"))), options)


class Loop:
    """One loop of a universal function, as a kernel."""

    def __init__(self, cupy: Any, ufunc: Any, op: Any) -> None:
        names = Names(cupy, "0_")
        reads = [names.element(f"v{i}", dtype) for i, dtype in enumerate(op.in_types)]
        result = names.call(ufunc, *reads)
        self.name = f"{ufunc.name} {''.join(x.dtype.char for x in reads)}"
        self.floats = any(x.dtype.kind == "f" for x in (*reads, result))
        self.preamble = "\n".join(names.noted.preambles)
        types = [names.ctype(x.dtype) for x in reads]
        given = ", ".join([f"const {t}* p{i}" for i, t in enumerate(types)])
        lines = [*[f"{t} v{i} = p{i}[threadIdx.x];" for i, t in enumerate(types)], *names.noted.lines]
        body = "\n".join([*lines, f"q[threadIdx.x] = {result.name};"])
        self.source = f"({given}, {names.ctype(result.dtype)}* q) {{\n{body}\n}}\n"


def loops(cupy: Any) -> list[Loop]:
    """Of each universal function that CuPy has, those that a run may be made of and that have to do with floats."""
    found: dict[str, Loop] = {}
    for function in {id(f): f for f in vars(cupy).values() if isinstance(f, cupy.ufunc)}.values():
        for op in private(function, "loops").ops:
            try:
                loop = Loop(cupy, function, op)
            except (NotElementwise, TypeError):
                continue
            if loop.floats:
                found.setdefault(loop.name, loop)
    return list(found.values())


def source_of(cupy: Any, some: list[Loop]) -> str:
    before = [f"#include <{header}>" for header in private_headers(cupy)]
    before += dict.fromkeys(loop.preamble for loop in some)
    kernels = [f'extern "C" __global__ void k{i}{loop.source}' for i, loop in enumerate(some)]
    return "\n".join([*before, *kernels])


def private_headers(cupy: Any) -> list[str]:
    """What stands before each kernel of CuPy's."""
    return list(cupy._core.core._cupy_header_list)


def different(compiler: Compiler, source: str, count: int, architecture: str) -> list[int]:
    """The kernels whose machine code is another without contractions."""
    own, fused = (compiler.compile(source, f"-arch={architecture}", *options) for options in ((), ("--fmad=false",)))
    assert len(own) == len(fused) == count
    return [i for i in range(count) if own[f"k{i}"] != fused[f"k{i}"]]


def test_a_contraction_is_seen(compiler: Compiler) -> None:
    kernel = 'extern "C" __global__ void k{}(const float* p, float* q) {{ q[0] = {}; }}\n'
    source = kernel.format(0, "p[0] * p[1] + p[2]") + kernel.format(1, "p[0] * p[1]")
    assert different(compiler, source, 2, "sm_90") == [0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", ["sm_89", "sm_90"])
def test_what_is_fused_has_the_machine_code_of_cupys_kernels(
    cupy: Any, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """All but those that are never fused, and those whose bits were found to be the same."""
    fused = {loop.name for loop in loops(cupy)}
    monkeypatch.setattr(expressions, "_CONTRACTED", {})
    every, others = loops(cupy), list[str]()
    groups: dict[str, list[Loop]] = {}
    for loop in every:
        groups.setdefault(loop.preamble, []).append(loop)
    for group in groups.values():
        for start in range(0, len(group), AT_ONCE):
            some = group[start : start + AT_ONCE]
            found = different(compiler, source_of(cupy, some), len(some), architecture)
            others += [some[i].name for i in found]
    assert len(every) > 200
    assert {name for name in others if name in fused} <= SAME_BITS, sorted(others)
    assert {"cupy_power dd", "cupy_remainder ff"} <= {*others} - fused


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8"])
def test_the_kernels_of_single_operations_compile(cupy: Any, compiler: Compiler, dtype: str) -> None:
    form = meta((3,), np.dtype(dtype))
    for name in ("add", "maximum", "less", "where", "gelu", "sqrt"):
        op = TABLE[name]
        args = {"where": (ref(0), ref(1), 1.5), "gelu": (ref(0),), "sqrt": (ref(0),)}.get(name, (ref(0), 1))
        options = {"approximate": "none"} if name == "gelu" else {}
        forms = [meta((3,), np.dtype(bool)), form] if name == "where" else [form]
        try:
            result = plan(op, tuple([forms[a.slot] if type(a) is Ref else a for a in args]), options).meta
        except TypeError:  # no function of NumPy's takes this dtype
            continue
        run = fused._alone(cupy, op, args, options, [*forms, result])
        assert run is not None
        found = compiler.compile(fused._code(cupy, len(run.reads), *run.source), "-arch=sm_90", *fused._OPTIONS[1:])
        assert list(found) == ["asyncsched_run"]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("name", windows._KERNELS)
def test_kernels_of_our_own_compile(cupy: Any, compiler: Compiler, name: str, dtype: str) -> None:
    """NVIDIA's compiler takes less than others do: a type without its header, for one."""
    internals, kind = import_module("cupy._core._kernel"), np.dtype(dtype)
    array, indexer, scalar = 1, 2, 3  # kinds of parameters
    for short in (True, False):
        kernel = windows._kernel(cupy, name, short, kind == np.float16)
        forms = [
            (indexer, cupy._core._carray.Indexer, None, 1, True, short) if each.name == "_ind"
            else (array, cupy.ndarray, kind, 1, True, short) if each.ctype == "T"
            else (scalar, cupy._core._scalar.CScalar, each.dtype, 0, True, True)
            for each in kernel.params
        ]  # fmt: skip
        types = internals._TypeMap((("T", kind),))
        source = internals._get_elementwise_kernel_code(
            tuple([internals._ArgInfo(*form) for form in forms]),
            types,
            kernel.params,
            kernel.operation,
            kernel.name,
            "",
        )
        headers = "\n".join(f"#include <{header}>" for header in private_headers(cupy))
        assert list(compiler.compile(f"{headers}\n{source}", "-arch=sm_90")) == [kernel.name]
