"""Every demo on the card, made small. That of PyTorch goes there only if PyTorch does."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest

from tests.demos.test_demos import needs, run
from tests.demos.test_server import Server

from .conftest import NONE

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
DEMOS = {
    "barriers": ["--size", 200],
    "bounded_vs_unbounded": ["--epochs", 1, "--batches", 6, "--plot", "PLOT"],
    "cpu_and_gpu": ["--batches", 3, "--plot", "PLOT"],
    "overlap": ["--steps", 8, "--items", 20],
    "pytorch_guest": ["--requests", 20],
    "train_digits": ["--epochs", 1, "--plot", "PLOT"],
    "train_text": ["--steps", 4, "--plot", "PLOT"],
}


@pytest.fixture(autouse=True)
def _card(has_card):
    if not has_card:
        pytest.skip(NONE)


@needs("matplotlib", "sklearn", "tqdm", "psutil")
@pytest.mark.parametrize("demo", DEMOS)
def test_it_runs(demo, tmp_path):
    if demo == "pytorch_guest":
        pytest.importorskip("torch")
    plot = tmp_path / "plot.png"
    # Where kernels are compiled by g++ the first run takes long.
    assert run(demo, *[plot if option == "PLOT" else option for option in DEMOS[demo]], patience=280)
    assert plot.exists() == ("PLOT" in DEMOS[demo])


@needs("sklearn", "starlette", "uvicorn", "safetensors")
def test_the_server_answers(tmp_path):
    server = Server("--device", "cuda")
    try:
        assert server.said.startswith("test accuracy 9")
        status, answer = server.ask("/predict", json.dumps({"pixels": np.full(64, 8).tolist()}).encode())
        assert status == 200
        assert abs(sum(json.loads(answer)["probabilities"]) - 1) < 1e-2
    finally:
        assert server.stop() == -signal.SIGTERM
