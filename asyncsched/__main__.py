"""`python -m asyncsched`: what this machine offers."""

from __future__ import annotations

from .devices.environment import describe

if __name__ == "__main__":
    print(describe())
