"""The notebook runs from its first cell to its last, and says what its committed outputs say."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "demos" / "notebook.ipynb"
MISSING = [name for name in ("nbclient", "ipykernel", "matplotlib") if importlib.util.find_spec(name) is None]

RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
print(nbformat.writes(notebook))
"""


def told(notebook: dict[str, Any]) -> list[list[str]]:
    """What each cell printed, returned and drew: of a picture, that there is one."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[_text(output) for output in cell["outputs"]] for cell in cells]


def _text(output: dict[str, Any]) -> str:
    assert output["output_type"] != "error"
    data = output.get("data", {})
    if "image/png" in data:
        return "a picture"
    return "".join(data["text/plain"] if data else output["text"])


@pytest.mark.skipif(bool(MISSING), reason=f"the notebook needs {', '.join(MISSING)}: asyncsched[test,demos]")
def test_the_notebook_runs_and_says_what_it_said(tmp_path: Path) -> None:
    committed = told(json.loads(NOTEBOOK.read_text()))
    assert ["a picture"] in committed
    # Not in this process: the client's own loop would be watched for what blocks it.
    command = [sys.executable, "-c", RUN, str(NOTEBOOK)]
    environment = os.environ | {"IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    environment.pop("MPLBACKEND", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert told(json.loads(done.stdout)) == committed
