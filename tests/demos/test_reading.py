"""The recipes of `demos/reading.py`: everything is read once in each epoch, and what was stopped goes on."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

from .test_demos import DEMOS

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("may_block")]  # the libraries open files

NEEDS = {
    "npy": (),
    "npy in blocks": (),
    "Parquet": ("pyarrow",),
    "Arrow": ("pyarrow",),
    "image folder": ("PIL",),
    "WebDataset": ("PIL", "webdataset"),
}
ROWS = np.arange(200).reshape(50, 4).tolist()
TABLE = [[i / 2, i % 3] for i in range(40)]
IMAGES = [[number, int(number >= 10)] for number in range(20)]
SAMPLES = [[number, number % 2] for number in range(30)]
CONTENTS = dict(zip(NEEDS, (ROWS, ROWS, TABLE, TABLE, IMAGES, SAMPLES), strict=True))


@pytest.fixture(scope="module")
def reading() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reading", DEMOS / "reading.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(item: Any) -> list[list[Any]]:
    """What an item holds, as rows of numbers: images are of one colour."""
    if isinstance(item, dict):
        return [list(row) for row in zip(*(column.tolist() for column in item.values()), strict=True)]
    if isinstance(item, tuple):
        assert item[0].shape in ((16, 16, 3), (8, 8, 3))
        assert np.unique(item[0]).size == 1
        return [[int(item[0][0, 0, 0]), item[1]]]
    return item.tolist() if item.ndim == 2 else [item.tolist()]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its files to the collector
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", NEEDS)
async def test_a_recipe_reads_everything_and_goes_on(
    s: asc.Scheduler, reading: ModuleType, name: str, tmp_path: Path
) -> None:
    for module in NEEDS[name]:
        pytest.importorskip(module, reason=f"{module} is not installed")
    pipe = dict(reading.recipes(s, tmp_path))[name]()
    epochs: list[Any] = []
    for _ in range(2):
        async with pipe.open() as items:
            epochs.append([rows_of(item) async for item in items])
        assert sorted(row for rows in epochs[-1] for row in rows) == sorted(CONTENTS[name])
    assert epochs[0] != epochs[1]
    pipe.load_state_dict({"epoch": 1, "taken": 0, "ahead": []})
    async with pipe.open() as items:
        for _ in range(3):
            await anext(items)
    pipe.load_state_dict(pipe.state_dict())
    async with pipe.open() as items:
        assert [rows_of(item) async for item in items] == epochs[1][3:]
    del items, pipe
    gc.collect()


def test_a_recipe_is_ten_lines_at_most(reading: ModuleType) -> None:
    source = (DEMOS / "reading.py").read_text().partition("# From here on")[0]
    functions = source.split("\n\n\ndef ")[2:]
    assert len(functions) == len(NEEDS)
    for function in functions:
        assert len([line for line in function.splitlines()[2:] if line.strip()]) <= 10, function


async def test_what_is_mapped_is_not_read_at_once(s: asc.Scheduler, reading: ModuleType, tmp_path: Path) -> None:
    reading.small_npy(tmp_path / "rows.npy")
    async with reading.npy(s, tmp_path / "rows.npy").open() as items:
        assert isinstance(await anext(items), np.memmap)
    async with reading.npy(s, tmp_path / "rows.npy").batch(8).to_device().open() as batches:
        assert (await anext(batches)).shape == (8, 4)
