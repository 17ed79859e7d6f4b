"""The same perceptron behind LitServe: `python -m bench.serving.litserve PORT WIDTH`.

A module of its own, since LitServe's worker process imports the class by name.
"""

from __future__ import annotations

import sys
from typing import Any

import litserve as ls
import numpy as np

from .app import BATCH, forward, weights


class Digits(ls.LitAPI):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__(max_batch_size=BATCH, batch_timeout=0.005)
        self.width = width

    def setup(self, device: object) -> None:
        self.layers = weights(self.width)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe reads annotations
        return np.asarray(request["x"], np.float32)

    def batch(self, rows: list[Any]) -> Any:
        return np.stack(rows)

    def predict(self, x: Any) -> Any:
        return forward(self.layers, x, np.maximum).argmax(axis=1)

    def unbatch(self, found: Any) -> list[int]:
        return [int(digit) for digit in found]

    def encode_response(self, digit: int) -> Any:
        return {"digit": digit}


if __name__ == "__main__":
    server = ls.LitServer(Digits(int(sys.argv[2])), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="error", generate_client_file=False)
