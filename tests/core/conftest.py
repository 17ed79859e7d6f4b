from __future__ import annotations

import pytest

from .rig import Rig


@pytest.fixture
def rig() -> Rig:
    """Without bounds; modules that are about those have one of their own."""
    return Rig()
