"""Fixtures of the tests of modules and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a checkpoint."""
    return tmp_path / "state.safetensors"
