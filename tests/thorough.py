"""How much is tried of what is drawn at random, done once for each of many things, or takes long.

A share of it by default; all of it with `ASYNCSCHED_THOROUGH=1`, which `.ci/run` sets in a step of its own.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

T = TypeVar("T")
THOROUGH = os.environ.get("ASYNCSCHED_THOROUGH") == "1"
thoroughly = pytest.mark.skipif(not THOROUGH, reason="it takes long: ASYNCSCHED_THOROUGH=1, as in CI")


def usually(share: T, thorough: T) -> T:
    """What is tried by default, and what where all is."""
    return thorough if THOROUGH else share
