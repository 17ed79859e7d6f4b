"""The same perceptron behind LitServe: `python -m bench.serving.litserve APP PORT OPTIONS`.

A module of its own, since LitServe's worker process imports the class by name.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import litserve as ls
import numpy as np

from bench import tokens

from .app import BATCH, forward, weights


class Digits(ls.LitAPI):  # type: ignore[misc]
    def __init__(self, width: int, most: int = BATCH, **options: bool) -> None:
        super().__init__(max_batch_size=most, batch_timeout=0.005, **options)
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


class Texts(Digits):
    """Streams of tokens, as in `bench.tokens`: of texts that come together, and end together."""

    def setup(self, device: object) -> None:
        tokens.LAYERS.extend(weights(self.width))

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # as above
        return [tokens.CHUNK, tokens.LENGTH]

    def predict(self, texts: Any) -> Iterator[list[str]]:
        for _ in range(tokens.LENGTH):
            tokens.step(texts)
            yield ["data: 1\n\n"] * len(texts)

    def unbatch(self, outputs: Any) -> Any:
        yield from outputs

    encode_response = unbatch


class Waits(ls.LitAPI):  # type: ignore[misc]
    """The model of `bench.serving.waiting`, in batches."""

    def setup(self, device: object) -> None:
        pass

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # as above
        return 0

    def batch(self, items: list[Any]) -> Any:
        return items

    def predict(self, items: list[Any]) -> Any:
        time.sleep(0.05 * len(items))
        return items

    def unbatch(self, items: Any) -> Any:
        return items

    def encode_response(self, item: Any) -> Any:
        return {}


if __name__ == "__main__":
    app, port, options = sys.argv[1:]
    given = json.loads(options)
    width, deadline = given["width"], given.get("deadline")
    if app == "bench.serving.waiting":
        api = Waits(max_batch_size=4, batch_timeout=0.005)
    else:
        api = Texts(width, tokens.CAPACITY, stream=True) if app == "bench.tokens" else Digits(width)
    server = ls.LitServer(api, accelerator="cpu", timeout=deadline or 30)
    server.run(host="127.0.0.1", port=int(port), log_level="error", generate_client_file=False)
