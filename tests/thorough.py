"""How much is tried of what is drawn at random, or done once for each of many tasks.

A share of it by default; all of it with `ASYNCSCHED_THOROUGH=1`, which `.ci/run` sets in a step of its own, for the
files that import this.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
THOROUGH = os.environ.get("ASYNCSCHED_THOROUGH") == "1"


def usually(share: T, thorough: T) -> T:
    """What is tried by default, and what where all is."""
    return thorough if THOROUGH else share
