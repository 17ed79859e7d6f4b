"""`python -m asyncsched`: every line it can print, with and without CuPy, a driver and a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import asyncsched as asc
from asyncsched import __main__ as program
from asyncsched.devices.cuda import driver as cuda_driver
from tests.fake_cupy import fake_cupy

ROOT = Path(__file__).parents[1]
WIDTH = 100


def described() -> dict[str, str]:
    """What `describe` says, by the name of each line."""
    text = program.describe()
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    assert max(map(len, text.splitlines())) <= WIDTH
    column = lines[0].index(lines[0].split(maxsplit=1)[1])
    assert all(line[column - 2 : column] == "  " for line in lines)  # aligned
    return {line[:column].strip(): line[column:] for line in lines}


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)


def driver(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """A machine whose NVIDIA driver knows CUDA up to this version; 0 for none."""

    def get_version(number: Any) -> int:
        number._obj.value = version
        return 0

    def library(_: object) -> Any:
        if not version:
            raise OSError("libcuda.so.1")
        return SimpleNamespace(cuDriverGetVersion=get_version)

    monkeypatch.setattr(cuda_driver, "_library", library)


def test_as_a_program():
    run = subprocess.run([sys.executable, "-m", "asyncsched"], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("asyncsched ")
    assert "NumPy" in run.stdout


def helped(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """What `--help` prints."""
    with pytest.raises(SystemExit) as caught:
        program.main([*command, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_every_extra_is_told():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = {"cuda12", "cuda13", *[extra for _, _, extra, _ in program.EXTRAS]}  # those by the driver
    assert told == set(extras) - {"docs", "demos", "test", "dev"}
    packages = {package for _, package, *_ in program.EXTRAS}
    assert packages <= {re.split(r"[\[<>=;]", one)[0] for extra in told for one in extras[extra]}


def test_help_names_the_commands_and_the_sections(capsys):
    text = helped(capsys)
    assert text.startswith("usage: python -m asyncsched [-h] COMMAND")
    for name in ("explain", "trace", "replan", "gpu-check"):
        assert re.search(rf"\n    {name}\s", text)
    printed = [line for line in program.describe().splitlines()[1:] if line and not line.startswith(" ")]
    assert {"devices", "software"} <= set(printed)
    for section in (*printed, "to install"):
        assert f"\n  {section} " in text


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of a short run."""
    path = str(tmp_path_factory.mktemp("trace") / "run.json")

    async def main() -> None:
        async with asc.Scheduler("cpu"), asc.Trace(path):
            await asc.ones((300, 300)).sum().item()

    asc.run(main)
    return path


@pytest.mark.parametrize(
    ("command", "first", "columns"),
    [("trace", "operation", r"\S+"), ("trace", "stream ", r"\S+"), ("replan", "streams ", r"\S+(?: \S+)*")],
)
def test_help_explains_each_column_that_is_printed(capsys, trace, command, first, columns):
    heads = next(line for line in program.main([command, trace]).splitlines() if line.startswith(first))
    text = helped(capsys, command)
    for column in re.findall(columns, heads):
        assert f"\n  {column} " in text or f"\nthe {column}s:" in text, column


def test_help_of_explain_says_that_the_process_must_listen(capsys):
    assert "asyncsched.observe.explain_on_signal()" in helped(capsys, "explain")


@pytest.mark.usefixtures("no_cupy")
def test_without_a_driver(monkeypatch):
    driver(monkeypatch, 0)
    found = described()
    assert found["cuda"] == "none: no NVIDIA driver found"
    assert found["CuPy"] == 'pip install "asyncsched[cuda12]"'
    assert found["NVIDIA driver"].startswith("install it")
    assert "processors" in found["cpu"]
    assert "threads" in found["BLAS"]


@pytest.mark.usefixtures("no_cupy")
@pytest.mark.parametrize(("version", "extra", "dotted"), [(12_080, "cuda12", "12.8"), (13_010, "cuda13", "13.1")])
def test_the_driver_decides_which_cupy(monkeypatch, version, extra, dotted):
    driver(monkeypatch, version)
    found = described()
    assert found["cuda"] == "none: CuPy is not installed"
    assert found["CuPy"] == f'pip install "asyncsched[{extra}]"'
    assert found["NVIDIA driver"] == f"for CUDA up to {dotted}"


def test_cupy_without_a_device(monkeypatch):
    with fake_cupy(devices=0):
        driver(monkeypatch, 12_080)
        found = described()
        assert found["cuda"] == "none: CuPy finds no device"
        assert found["CuPy"] == "14.0.0, for CUDA 12.9"
        driver(monkeypatch, 0)
        assert described()["cuda"] == "none: no NVIDIA driver found"


def test_devices_are_listed_with_their_memory():
    with fake_cupy(devices=2, memory=3 << 29):
        found = described()
    for name in ("cuda:0", "cuda:1"):
        assert found[name] == "Fake GPU, compute capability 9.0, 1.5 GiB of memory, 1.5 GiB free"
    assert found["NVIDIA driver"] == "for CUDA up to 13.0"


@pytest.mark.parametrize("library", ["nvrtc", "cublas"])
def test_parts_missing_from_the_wheel_are_reported(monkeypatch, library):
    with fake_cupy():
        import cupy

        assert "CUDA libraries" not in described()
        monkeypatch.delattr(cupy.cuda, library)  # not a module that can be imported, but found when it is named
        assert described()["CUDA libraries"] == 'pip install "cupy-cuda12x[ctk]"'


def opened(device: str = "cuda") -> str:
    """What opening a scheduler on it says."""

    async def main() -> None:
        async with asc.Scheduler(device):
            pass

    with pytest.raises(RuntimeError) as caught:
        asc.run(main)
    return str(caught.value)


@pytest.mark.usefixtures("no_cupy")
def test_opening_says_everything_that_is_missing(monkeypatch):
    driver(monkeypatch, 0)
    assert opened() == (
        "cuda:0 cannot be used: no NVIDIA driver found: install it, where there is an NVIDIA GPU (a container gets it"
        ' by `--gpus all`); CuPy is not installed: pip install "asyncsched[cuda12]". Or use Scheduler("cpu")'
    )
    driver(monkeypatch, 13_010)
    assert 'used: CuPy is not installed: pip install "asyncsched[cuda13]". Or' in opened()


def test_opening_where_cupy_finds_no_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with fake_cupy(devices=0):
        driver(monkeypatch, 12_080)
        assert "CuPy finds no device, and CUDA_VISIBLE_DEVICES is '': unset it, or name devices" in opened()
        assert described()["cuda"] == "none: CuPy finds no device, and CUDA_VISIBLE_DEVICES is ''"
        driver(monkeypatch, 11_040)
        assert (
            "the NVIDIA driver knows CUDA up to 11.4, too old for this CuPy, which is for CUDA 12: update it."
            in opened()
        )


def test_opening_without_the_compiler_of_kernels(monkeypatch):
    with fake_cupy():
        import cupy

        monkeypatch.delattr(cupy.cuda, "nvrtc")
        assert 'CuPy finds no NVRTC or no cuBLAS: pip install "cupy-cuda12x[ctk]". Or' in opened()


# By the numbers of CUDA's errors, the beginning of what is said.
REFUSED = {
    2: "the device has no room: end other programs that use it: `nvidia-smi` lists them",
    3: "CUDA cannot begin in this process: it was forked",
    46: "another process has the device alone: end it",
    802: "CUDA is not ready yet",
    803: "the NVIDIA driver and its libraries are of different versions",
    804: "CUDA's forward compatibility does not serve this device",
    999: "the NVIDIA driver fails",
    719: "CUDA refuses: cudaErrorUnknown",
}


@pytest.mark.parametrize("call", ["getDeviceCount", "memGetInfo"])
@pytest.mark.parametrize("status", REFUSED)
def test_an_error_of_cuda_is_one_line(monkeypatch, call, status):
    with fake_cupy():
        from cupy.cuda import runtime

        def refuse() -> None:
            raise runtime.CUDARuntimeError(status)

        monkeypatch.setattr(runtime, call, refuse)
        (line,) = [line for line in program.describe().splitlines() if line.startswith("  cuda")]
        how = "none" if call == "getDeviceCount" else "Fake GPU, not usable"
        assert f"{how}: {REFUSED[status].split(': end')[0]}" in line
        assert f"cuda:0 cannot be used: {REFUSED[status]}" in opened()


def test_a_card_without_room_a_mig_slice_and_wsl_are_reported(monkeypatch):
    with fake_cupy(memory=100 << 20):
        from cupy.cuda import runtime

        name = b"NVIDIA A100 MIG 1g.5gb"
        monkeypatch.setattr(runtime, "getDeviceProperties", lambda number: {"name": name, "major": 8, "minor": 0})
        line = next(line for line in program.describe().splitlines() if line.startswith("  cuda:0 "))
        assert (
            "100.0 MiB free, too little: `nvidia-smi` lists the processes that use the rest, the only MIG slice that a"
            in line
        )
    with fake_cupy(memory=4 << 20):
        assert "cuda:0 cannot be used: the device has no room: end other programs that use it" in opened()
    monkeypatch.setattr("platform.release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    driver(monkeypatch, 0)
    found = described()
    assert ", WSL " in found["Python"]
    assert found["NVIDIA driver"] == "install it on Windows, and none in WSL; then `wsl --shutdown`"


def test_opening_a_device_that_is_not_there():
    with fake_cupy():
        assert opened("cuda:1") == "cuda:1: CUDA finds 1 devices here: `python -m asyncsched` lists them"


def test_versions_come_from_the_packages(monkeypatch):
    monkeypatch.setattr(program, "_version", lambda package: "2.0" if package == "torch" else None)
    found = described()
    assert found["PyTorch"] == "2.0"
    assert found["uvloop"] == 'pip install "asyncsched[uvloop]" (a quicker event loop)'
    assert found["numba"] == 'pip install "asyncsched[numba]" (quicker kernels)'
    assert found["event loop"] == "asyncio"
    assert found["safetensors"] == 'pip install "asyncsched[safetensors]" (to save and load states)'
    assert found["rich"] == 'pip install "asyncsched[live]" (to watch a scheduler in the terminal)'
    monkeypatch.setattr(program, "_version", lambda package: "0.5" if package == "safetensors" else None)
    assert described()["safetensors"] == "0.5"
