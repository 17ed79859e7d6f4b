"""Training a convolutional network on handwritten digits, under a limit on memory.

scikit-learn's digits (8 x 8 pixels, real handwriting; a fifth held out) go through a pipeline: shuffled anew each
epoch, shifted by up to a pixel, batched, and put on the device two batches ahead of the training. The loop waits only
for items of the pipeline, and at a window that keeps two steps in flight. The losses are read once per epoch.

The limit is on all tracked bytes: parameters, their moments, arrays for the backward pass, batches ahead. If it is too
small for one step, the error names a limit that works.

    python demos/train_digits.py [--max-bytes "24 MiB"] [--epochs 15] [--plot PATH] [--live]

With --live the terminal shows the scheduler at work, instead of the progress.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from time import perf_counter

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import asyncsched as asc
from asyncsched import nn

MIB = 2**20
BATCH = 64
History = dict[str, list[float]]


class Digits:
    """The images as (1, 8, 8) float32 between -1 and 1, and their labels."""

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        images = (images.reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)
        order = np.random.default_rng(0).permutation(len(images))
        test, self.train = np.split(order, [len(order) // 5])
        self.images, self.labels = images, labels
        self.test_images, self.test_labels = images[test], labels[test]

    def epoch(self, number: int) -> Iterator[tuple[int, int, int]]:
        """The order of the images, and how far each is moved."""
        rng = np.random.default_rng((0, number))
        for i in rng.permutation(self.train):
            yield i, *rng.integers(-1, 2, 2)

    def example(self, which: tuple[int, int, int]) -> tuple[np.ndarray, np.int64]:
        """An image, moved, and its label."""
        i, down, right = which
        return np.roll(self.images[i], (down, right), (1, 2)), self.labels[i]


def network(rng: np.random.Generator) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, rng=rng), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, rng=rng), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3, rng=rng), nn.Linear(64 * 4 * 4, 10, rng=rng),
    )  # fmt: skip


async def train(options: argparse.Namespace) -> tuple[History, int]:
    """Train. Returns the loss of each step, the tracked bytes when it was issued, accuracies; and the limit."""
    data = Digits()
    history: History = {"loss": [], "bytes": [], "accuracy": []}
    instruments = [asc.observe.Live()] if options.live else []
    async with asc.Scheduler(max_bytes=options.max_bytes, instruments=instruments) as s:
        model = network(np.random.default_rng(0))
        optimizer = asc.optim.AdamW(model.parameters(), lr=2e-3)
        window = s.window(2)
        batches = s.pipeline(data.epoch).map(data.example).batch(BATCH, drop_last=True).to_device(depth=2)
        began = perf_counter()
        with tqdm(total=options.epochs * (len(data.train) // BATCH), unit="batch", disable=options.live or None) as bar:
            for epoch in range(options.epochs):
                losses = []
                async with batches.open() as items:
                    async for images, labels in items:
                        async with window:
                            loss = nn.cross_entropy(model(images), labels)
                            loss.backward()
                            optimizer.step()
                            optimizer.zero_grad()
                        losses.append(loss.detach())
                        del images, labels, loss
                        history["bytes"].append(s.tracked_bytes)
                        bar.update()
                history["loss"] += (await asc.stack(losses).numpy()).tolist()
                history["accuracy"].append(await accuracy(s, model, data))
                bar.set_postfix_str(f"epoch {epoch + 1}, test accuracy {history['accuracy'][-1]:.1%}")
        peak, limit = s.statistics().peak_bytes, s.statistics().max_bytes or 0
    seconds = perf_counter() - began
    print(f"test accuracy {history['accuracy'][-1]:.1%} after {options.epochs} epochs in {seconds:.1f} s")
    kept = "within" if peak <= limit else "NOT within"
    print(f"peak of tracked bytes {peak / MIB:.1f} MiB, {kept} the limit of {options.max_bytes}")
    print(f"the pipeline's bottleneck: {batches.statistics().bottleneck}")
    return history, limit


async def accuracy(s: asc.Scheduler, model: nn.Module, data: Digits) -> float:
    """The share of the held-out images that the model gets right. They are computed in parts, which stay under the
    limit, too."""
    right = 0
    model.eval()
    with asc.no_grad():
        for start in range(0, len(data.test_labels), BATCH):
            part = slice(start, start + BATCH)
            guessed = asc.argmax(model(await s.put(data.test_images[part])), axis=1)
            right += int(np.sum(await guessed.numpy() == data.test_labels[part]))
    model.train()
    return right / len(data.test_labels)


def draw(history: History, limit: int, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    above.plot(history["loss"], linewidth=0.8, label="training loss")
    above.set(ylabel="cross entropy", yscale="log")
    ends = np.linspace(0, len(history["loss"]), len(history["accuracy"]) + 1)[1:]
    right = above.twinx()
    right.plot(ends, history["accuracy"], "o-", color="tab:green", markersize=3, label="test accuracy")
    right.set(ylabel="test accuracy", ylim=(0.8, 1.0))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    below.plot(np.array(history["bytes"]) / MIB, linewidth=0.8, color="tab:orange")
    below.axhline(limit / MIB, color="black", linestyle="--", linewidth=1, label=f"limit: {limit / MIB:g} MiB")
    below.set(xlabel="step", ylabel="tracked bytes (MiB)", ylim=(0, None))
    below.legend(loc="lower right")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    print(f"plot: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-bytes", default="24 MiB", help="the limit on tracked bytes")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--plot", metavar="PATH", default="train_digits.png")
    parser.add_argument("--live", action="store_true", help="show the scheduler at work")
    options = parser.parse_args()
    draw(*asyncio.run(train(options)), options.plot)
