"""What a user would pick instead, side by side: `python -m bench.peers`.

Makes an environment for each peer that is not installed here, once, and prints a table of ratios; a peer that will not
install is named with the reason. `--readme` writes the table of the last results into the README.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .measure import ROOT
from .picture import draw
from .results import RESULTS, add_options, contestants, found, load, measured, number, print_table, setting
from .turns import Row

PEERS = {
    "NumPy": "numpy",
    "asyncsched": "asyncsched",
    "one stream": "asyncsched one stream",
    "PyTorch": "torch",
    "JAX": "jax",
    "MXNet": "mxnet",
    "Dask": "dask",
    "distributed": "distributed",
    "Ray": "ray",
    "run_in_executor": "run_in_executor",
    "to_thread": "to_thread",
}


def _row(title: str, unit: str, work: str, **options: Any) -> Row:
    return Row(title, unit, {column: (contestant, work) for column, contestant in PEERS.items()}, **options)


ROWS = (
    _row("`x + 1` on (1, 2): 10,000, one barrier", "us", "tiny"),
    _row("`x + 1` on (1000, 1000): 50, one barrier", "us", "large"),
    _row("a chain of 1,000 `x + 1` on (1, 2)", "us", "chain"),
    _row("a diamond: two products (256, 256) of one sum, their sum", "us", "diamonds"),
    _row("fan-out: 10,000 products (64, 64) of one, all kept", "us", "fan-out"),
    _row("`x + 1` on (1, 2), each awaited", "us", "tiny awaited"),
    _row("ten elementwise operations on 8 MiB, captured or compiled", "ms", "captured"),
    _row("a training step, 512-2048-512-1, batch 1024", "ms", "training"),
    _row("memory at the peak of 20 such steps", "MiB", "peak", fresh=True),
)
NOTE = "Dask, distributed and Ray issue a tenth of the smallest operations: ratios are of the time of one"
BEGIN, END = "<!-- bench.peers: begin -->", "<!-- bench.peers: end -->"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    add_options(parser, "peers")
    parser.add_argument("--readme", action="store_true", help="write the table of the last results into README.md")
    options = parser.parse_args(arguments)
    if options.readme:
        readme = ROOT / "README.md"
        readme.write_text(with_table(readme.read_text("utf-8"), load(RESULTS / "peers.json")), "utf-8")
        return
    result = measured("peers", ROWS, options)
    print_table(result, list(PEERS))
    print(NOTE)
    if options.json and not options.quick:
        draw(
            Path(options.json).with_suffix(".png"),
            result,
            "Peers beside NumPy inline",
            [column for column, who in PEERS.items() if "asyncsched" in who],
        )


# -- the README's table -------------------------------------------------------------------------------------------


def with_table(readme: str, result: Mapping[str, Any]) -> str:
    """The README with these results between its two marks."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(result)}\n{END}{after}"


def table(result: Mapping[str, Any]) -> str:
    columns = [column for column in PEERS if column in found(result)]
    lines = [["what", *columns], ["---"] * (1 + len(columns))]
    lines += [[row["work"], *[_cell(row, column) for column in columns]] for row in result["rows"]]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    missing = "".join(f" {peer}: {reason}." for peer, reason in result["missing"].items())
    why = "A dash: no number, for the reason in `bench/results/peers.json`."
    return f"{text}\n\n{setting(result)}. {contestants(result)}. {NOTE}. {why}{missing}"


def _cell(row: Mapping[str, Any], column: str) -> str:
    cell = row["cells"].get(column, {})
    if "value" not in cell:
        return "-"
    if column == row["reference"]:
        return f"{number(cell['value'])} {row['unit']}"
    return f"{number(cell['ratio'])}x"


if __name__ == "__main__":
    main()
