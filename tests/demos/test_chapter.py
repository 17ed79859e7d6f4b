"""The textbook's chapter: its notebook is what its scripts make, was run, and runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.thorough import thoroughly

from .test_demos import DEMOS, PNG, needs

CHAPTER = DEMOS / "chapter"
NOTEBOOK = CHAPTER / "asynchronous_computation.ipynb"
SHARED = {"book", "build"}
LEAST_SEEN = {
    "dependency_graph": "2 done, 2 pending",
    "issue_bound": "t1 + n t2",
    "overlap_by_one": "window(2)",
    "profiler": "linear_weight_grad",
    "stages": "t1 + n t2 + t3",
    "training": "no barrier",
}


def cells(path: Path) -> dict[str, dict[str, Any]]:
    return {cell["id"]: cell for cell in json.loads(path.read_text())["cells"]}


def told(cell: dict[str, Any]) -> tuple[str, int]:
    """What a cell printed, and how many pictures it drew."""
    assert not [output for output in cell["outputs"] if output["output_type"] == "error"]
    text = "".join("".join(output.get("text", "")) for output in cell["outputs"])
    return text, sum(any("image/" in kind for kind in output.get("data", ())) for output in cell["outputs"])


def quick(*command: object, **options: Any) -> str:
    """What a program of the chapter prints, made small."""
    environment = os.environ | {"ASYNCSCHED_CHAPTER": "quick"} | options.pop("variables", {})
    environment.pop("MPLBACKEND", None)
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, env=environment, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@thoroughly
@needs("matplotlib", "psutil", "nbclient", "ipykernel")
def test_the_notebook_is_what_the_scripts_make_and_runs(tmp_path: Path) -> None:
    made = tmp_path / "made.ipynb"
    quick(
        CHAPTER / "build.py", "--out", made, timeout=110,
        variables={"IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    committed, now = cells(NOTEBOOK), cells(made)
    assert [(name, cell["source"]) for name, cell in committed.items()] == [
        (name, cell["source"]) for name, cell in now.items()
    ]
    scripts = {path.stem for path in CHAPTER.glob("*.py")} - SHARED
    assert scripts | {"machine"} == {name for name, cell in now.items() if cell["cell_type"] == "code"}
    for name in scripts:
        text, pictures = told(now[name])
        assert pictures == told(committed[name])[1] >= 1
        assert LEAST_SEEN.get(name, "") in text
        assert text.strip()


def test_what_is_committed_was_no_quick_run_and_is_small() -> None:
    committed = cells(NOTEBOOK)
    assert "300 minibatches" in told(committed["training"])[0]
    assert NOTEBOOK.stat().st_size < 700_000
    refused, _ = told(committed["barriers"])
    assert len(re.findall("ImplicitBarrierError: .* use `", refused)) == 6


@needs("matplotlib")
def test_a_cell_is_a_script(tmp_path: Path) -> None:
    lines = quick(CHAPTER / "all_or_one.py", cwd=tmp_path, timeout=60).splitlines()
    assert lines[-1] == "plot: all_or_one.png"
    assert (tmp_path / "all_or_one.png").read_bytes().startswith(PNG)
    done = [int(line.rpartition("with")[2].split()[0]) for line in lines[:-1]]
    assert all(count > place for count, place in zip(done, (0, 2, 4, 6, 8, 9), strict=False))
    assert done[-1] == 10  # at the barrier
