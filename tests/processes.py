"""Programs in processes of their own, for tests."""

from __future__ import annotations

import subprocess
import sys


def fresh(code: str) -> str:
    """What a program prints, on both of its outputs."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    return done.stdout + done.stderr
