"""Loaded by a worker before all else, it gives it a card: the fake CuPy's."""

from __future__ import annotations

from tests import fake_cupy

fake = fake_cupy.install()
