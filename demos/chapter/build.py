"""Makes the notebook from the scripts beside it, runs it, and writes it with its outputs.

Each script gives a cell of text, its docstring, and a cell of code, the rest. There `asc.run(main)` becomes `await
main()`, since a notebook's loop runs already. So nothing is written twice, and a test compares the notebook with the
scripts.

    python demos/chapter/build.py [--out PATH]
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

import nbclient
import nbformat

HERE = Path(__file__).parent
CELLS = [
    "warm_up",
    "dependency_graph",
    "barriers",
    "increments",
    "stages",
    "training",
    "profiler",
    "issue_bound",
    "overlap_by_one",
    "two_devices",
    "all_or_one",
]


def notebook() -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    made.metadata["language_info"] = {"name": "python"}
    made.cells.append(nbformat.v4.new_markdown_cell(introduction(), id="introduction"))
    made.cells.append(nbformat.v4.new_code_cell("from book import machine\n\nmachine()", id="machine"))
    for name in CELLS:
        text, code = parts((HERE / f"{name}.py").read_text())
        made.cells.append(nbformat.v4.new_markdown_cell(text, id=f"{name}-text"))
        made.cells.append(nbformat.v4.new_code_cell(code, id=name))
    return made


def introduction() -> str:
    text, _ = parts((HERE / "book.py").read_text())
    return f"# Asynchronous computation: a chapter, as runs\n\n{text.partition(chr(10) * 2)[2]}"


def parts(source: str) -> tuple[str, str]:
    """The docstring of a script, and the rest, which awaits what the script runs."""
    tree = ast.parse(source)
    docstring = tree.body[0]
    rest = "".join(source.splitlines(keepends=True)[docstring.end_lineno :]).strip()
    code = re.sub(r'if __name__ == "__main__":\n    asc\.run\((\w+)\)', r"await \1()", rest)
    return (ast.get_docstring(tree) or "").strip(), code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "asynchronous_computation.ipynb")
    options = parser.parse_args()
    made = notebook()
    where = {"metadata": {"path": str(HERE)}}
    client = nbclient.NotebookClient(made, timeout=300, resources=where, record_timing=False, coalesce_streams=True)
    client.execute()
    options.out.write_text(nbformat.writes(made) + "\n")
    print(f"notebook: {options.out}")
