"""Processes that find the fake CuPy installed, or no CuPy at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# In processes of their own the programs may block the fake's loop; what is raced for there is tested elsewhere.
FAKE = "import tests.fake_cupy; tests.fake_cupy.install(devices=2, memory=4 << 30, laziness=0.0)"
NONE = "import sys; sys.modules['cupy'] = None"


def started_with(folder: Path, code: str) -> dict[str, str]:
    """An environment in which each process of Python runs this first."""
    (folder / "sitecustomize.py").write_text(code)
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine with the fake."""
    return started_with(tmp_path_factory.mktemp("fake"), FAKE)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of one without CuPy."""
    return started_with(tmp_path_factory.mktemp("bare"), NONE)
