"""Each demo runs, made small, in a process of its own, and says what it is for."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.thorough import thoroughly

DEMOS = Path(__file__).parents[2] / "demos"
WAYS = ["barrier", "window(2)", "bounded", "unbounded"]
README = (DEMOS / "README.md").read_text()
PNG = b"\x89PNG\r\n"
# Threads that spin while they wait would take the processors from other tests.
ALONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"the demo needs {', '.join(missing)}: asyncsched[demos]")


def run(demo: str, *options: object, patience: float = 100) -> list[str]:
    """The lines that a demo prints."""
    command = [sys.executable, str(DEMOS / f"{demo}.py"), *map(str, options)]
    environment = os.environ | ALONE | {"MPLBACKEND": "Agg"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=patience, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@functools.cache
def barriers() -> list[str]:
    return run("barriers", "--size", 700)


def table(lines: list[str]) -> dict[str, list[str]]:
    """The rows of bounded_vs_unbounded's table, by way."""
    start = next(i for i, line in enumerate(lines) if line.startswith("way "))
    rows = {row[0]: row[1:] for row in map(str.split, lines[start + 1 : lines.index("")])}
    assert list(rows) == WAYS
    return rows


def said(lines: list[str], beginning: str) -> str:
    return next(line for line in lines if line.startswith(beginning))


@pytest.mark.parametrize("path", sorted(DEMOS.rglob("*.py")), ids=lambda path: path.stem)
def test_it_uses_what_is_public_alone(path: Path) -> None:
    """No module of the package with a leading underscore, and no private name of a module."""
    imports = re.findall(r"^ *(?:from|import) +asyncsched.*", path.read_text(), re.MULTILINE)
    assert not [line for line in imports if re.search(r"[. ]_\w", line)]


@pytest.mark.parametrize("path", sorted(DEMOS.glob("*.py")), ids=lambda path: path.stem)
def test_it_says_at_once_what_it_does(path: Path) -> None:
    """The first line of its docstring is printed before anything is imported that takes time."""
    if path.stem == "server_load":  # it has nothing to load
        return
    tree = ast.parse(path.read_text())
    assert (ast.get_docstring(tree) or "").splitlines()[0].endswith(".")
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test):
            assert ast.unparse(statement.body[0]).startswith("print(__doc__.splitlines()[0], ")
            return
        for alias in statement.names if isinstance(statement, ast.Import) else ():
            assert alias.name.partition(".")[0] in sys.stdlib_module_names
        if isinstance(statement, ast.ImportFrom):
            assert (statement.module or "").partition(".")[0] in sys.stdlib_module_names
    raise AssertionError("it never does")


@thoroughly
@needs("matplotlib", "sklearn", "tqdm", "psutil")
def test_digits_are_learned_whichever_way(tmp_path: Path) -> None:
    plot = tmp_path / "memory.png"
    lines = run("bounded_vs_unbounded", "--data", "digits", "--epochs", 8, "--plot", plot)
    rows = table(lines)
    for way in WAYS:
        accuracy = re.search(r"([\d.]+)%", " ".join(rows[way]))
        assert accuracy is not None
        assert float(accuracy[1]) >= 95, way
    assert "bounded stayed within its limit of 5.0 MiB tracked." in said(
        lines, "The losses are the same to the last bit"
    )
    assert plot.read_bytes().startswith(PNG)


@needs("matplotlib", "tqdm", "psutil")
def test_without_limits_the_host_runs_ahead(tmp_path: Path) -> None:
    plot = tmp_path / "memory.png"
    lines = run("bounded_vs_unbounded", "--batches", 16, "--max-bytes", "60 MiB", "--plot", plot)
    peaks = {way: float(row[2]) for way, row in table(lines).items()}  # way, seconds, "s", peak, "MiB", growth, ...
    assert peaks["barrier"] < peaks["window(2)"] < peaks["unbounded"] / 2
    assert peaks["bounded"] <= 60
    assert plot.read_bytes().startswith(PNG)


def test_a_barrier_waits_for_no_more_than_it_must() -> None:
    lines = barriers()
    assert re.search(r"\b10 of 10", said(lines, "on everything"))
    assert re.search(r"\b10 of 10", said(lines, "on the last tensor"))
    assert not re.search(r"\b10 of 10", said(lines, "on the first"))
    assert "ndarray (700, 700)" in said(lines, "to NumPy")
    assert re.search(r"gave -?[\d.e-]+$", said(lines, "to a scalar"))


def test_implicit_barriers_are_refused() -> None:
    lines = barriers()
    start = next(i for i, line in enumerate(lines) if line.startswith("Refused")) + 2
    refused = lines[start : lines.index("", start)]
    assert len(refused) == 12
    for line in refused:
        assert "ImplicitBarrierError: " in line
        assert "use `" in line
    assert "pending" in said(lines, "repr(chosen)")


def test_windows_and_stages_overlap_within_their_bounds() -> None:
    lines = run("overlap", "--steps", 8, "--items", 20)
    for depth in (1, 2, 4):
        ahead, in_order, of, pairs = said(lines, f"depth {depth}").split()[4:]
        assert (in_order, of, pairs) == (str(8 - depth), "of", str(8 - depth))
        assert int(ahead) < depth
    assert said(lines, "bottleneck: ")
    assert len([line for line in lines if "20 items  busy" in line]) == 5


@thoroughly
@needs("matplotlib", "sklearn", "tqdm")
def test_digits_are_learned_under_the_limit(tmp_path: Path) -> None:
    lines = run("train_digits", "--epochs", 1, "--plot", tmp_path / "digits.png")
    accuracy = float(said(lines, "test accuracy ").split()[2].rstrip("%"))
    assert accuracy > 70
    assert "within the limit of 24 MiB" in said(lines, "peak of tracked bytes ")
    assert (tmp_path / "digits.png").stat().st_size > 10_000


@thoroughly
@needs("matplotlib", "tqdm")
def test_text_is_learned_and_a_sample_written(tmp_path: Path) -> None:
    lines = run("train_text", "--steps", 20, "--plot", tmp_path / "text.png")
    entropy = float(next(line for line in lines if "entropy of single ones" in line).split()[-2])
    assert float(said(lines, "loss ").split()[1]) < entropy + 1.5
    assert (tmp_path / "text.png").stat().st_size > 10_000


def test_files_are_read() -> None:
    lines = run("reading")
    assert lines[1] == "npy            50 items, such as float32(4,)"
    assert lines[2] == "npy in blocks  7 items, such as float32(8, 4)"
    assert len(lines) == 7
    for line in lines[3:]:
        assert re.search(r"\d items, such as |left out: pip install (pyarrow|pillow|webdataset)$", line)


@needs("torch", "tqdm")
def test_pytorch_is_a_guest() -> None:
    lines = run("pytorch_guest", "--requests", 40)
    assert "0 answers differ from PyTorch's" in said(lines, "40 requests in ")
    assert "bad input failed alone" in lines[-1]


@thoroughly
@needs("dask", "distributed", "matplotlib", "psutil")
def test_a_dask_array_is_reduced_under_a_limit(tmp_path: Path) -> None:
    plot = tmp_path / "dask_array.png"
    lines = run("dask_array", "--fields", 8, "--threads", 2, "--max-bytes", "160 MiB", "--plot", plot)
    told = said(lines, "The results are equal to rounding.")
    assert "within its limit of 160 MiB" in told
    assert "NOT" not in told
    assert plot.read_bytes().startswith(PNG)


@thoroughly
@needs("sklearn", "distributed")
def test_a_cluster_trains_as_one_machine_though_a_worker_is_killed() -> None:
    lines = run("cluster", "--steps", 4, "--workers", 2)
    assert said(lines, "    step 2: killed the worker")
    for way in ("this machine alone", "1 worker", "2 workers", "one worker killed"):
        assert float(said(lines, f"{way}: ").split("off by ")[1].split()[0]) < 1e-4


@pytest.mark.parametrize(("demo", "extra"), [("cluster", "cluster"), ("dask_array", "cluster")])
def test_what_the_extra_of_the_demos_does_not_bring_is_named(demo: str, extra: str) -> None:
    missing = "import runpy, sys; sys.modules['dask'] = sys.modules['distributed'] = None; runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-c", missing, str(DEMOS / f"{demo}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr == f'Dask is not installed: pip install "asyncsched[{extra}]"\n'
    assert f"(extra `{extra}`)" in next(line for line in README.splitlines() if f"`{demo}.py` |" in line)
