"""A task that holds its stream until the test lets it go."""

from __future__ import annotations

import threading

import numpy as np


class Gate:
    """A task body that waits until it is opened, then gives zeros of a shape."""

    def __init__(self, *shape: int) -> None:
        self._event = threading.Event()
        self._shape = shape
        self.open = self._event.set

    def __call__(self) -> np.ndarray:
        self._event.wait(60)
        return np.zeros(self._shape)
