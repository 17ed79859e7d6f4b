"""Training a small transformer on the topics of Python's `help()`, in less than a minute.

It predicts the next character from the 64 before it. The loss must fall well below the entropy of single characters,
which a count of letters would reach. At the end it continues a few words. (A minute: on two cores.)

    python demos/train_text.py [--steps 320] [--max-bytes "96 MiB"] [--plot PATH]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator
from pydoc_data.topics import topics
from time import perf_counter

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np
from tqdm import tqdm

import asyncsched as asc
from asyncsched import nn

MIB = 2**20
History = dict[str, list[float]]
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 32, 96, 4, 2
RATE = 3e-3  # the learning rate in the first half; then it falls to zero in a straight line
BEGINNING = 'The "with" statement is used to wrap the execution of a block '


class Text:
    """Characters as numbers. All rare characters share one number."""

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        found, counts = np.unique(np.array(list(text)), return_counts=True)
        self.characters = ["?", *found[counts >= 20]]
        self.number = {c: i for i, c in enumerate(self.characters)}
        self.numbers = np.array([self.number.get(c, 0) for c in text])
        shares = np.bincount(self.numbers) / len(self.numbers)
        self.entropy = float(-np.sum(shares * np.log(shares, where=shares > 0, out=np.zeros_like(shares))))

    def batches(self, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Random places in the text: (batch, context) characters, and those one place further."""
        rng = np.random.default_rng(0)
        for _ in range(steps):
            starts = rng.integers(0, len(self.numbers) - CONTEXT - 1, (BATCH, 1))
            places = starts + np.arange(CONTEXT + 1)
            chosen = self.numbers[places]
            yield chosen[:, :-1], chosen[:, 1:].reshape(-1)


class Block(nn.Module):
    """Attention to earlier characters, then two layers on each character. Both are added to their input."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, rng=rng)
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH, rng=rng), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, rng=rng)
        )

    def forward(self, x: asc.Tensor) -> asc.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, is_causal=True)
        return x + self.inner(self.norm2(x))


class Model(nn.Module):
    """Logits of the next character, for each character: (batch, context) -> (batch * context, characters)."""

    def __init__(self, characters: int, rng: np.random.Generator) -> None:
        self.character = nn.Embedding(characters, WIDTH, rng=rng)
        self.place = nn.Embedding(CONTEXT, WIDTH, rng=rng)
        self.blocks = [Block(rng) for _ in range(LAYERS)]
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, characters, rng=rng)

    def forward(self, numbers: asc.Tensor) -> asc.Tensor:
        x = self.character(numbers) + self.place(asc.arange(numbers.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x)).reshape(-1, self.out.weight.shape[0])


async def learn(s: asc.Scheduler, text: Text, model: Model, steps: int) -> AsyncIterator[asc.Tensor]:
    """Train on so many batches. Gives each step's loss as soon as the step is issued."""
    optimizer, window = asc.optim.AdamW(model.parameters(), lr=RATE), s.window(2)
    async with s.pipeline(text.batches(steps)).to_device(depth=2).open() as items:
        done = 0
        async for numbers, following in items:
            optimizer.lr = RATE * min(1, 2 - 2 * done / steps)
            async with window:
                loss = nn.cross_entropy(model(numbers), following)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            done, loss = done + 1, loss.detach()
            del numbers, following
            yield loss
            del loss


async def train(options: argparse.Namespace) -> tuple[History, float, int]:
    """Train, and print the results and a sample. Returns losses and tracked bytes, the entropy, and the limit."""
    text = Text()
    history: History = {"loss": [], "bytes": []}
    async with asc.Scheduler(max_bytes=options.max_bytes) as s:
        rng = np.random.default_rng(0)
        model = Model(len(text.characters), rng)
        began, losses = perf_counter(), []
        with tqdm(total=options.steps, unit="step", disable=None) as bar:
            async for loss in learn(s, text, model, options.steps):
                losses.append(loss)
                history["bytes"].append(s.tracked_bytes)
                bar.update()
                if len(losses) == 50:
                    history["loss"] += (await asc.stack(losses).numpy()).tolist()
                    losses.clear()
                    bar.set_postfix(loss=f"{history['loss'][-1]:.3f}")
        if losses:
            history["loss"] += (await asc.stack(losses).numpy()).tolist()
        peak, limit = s.statistics().peak_bytes, s.statistics().max_bytes or 0
        reached = float(np.mean(history["loss"][-50:]))
        print(f"{len(text.numbers):,} characters; entropy of single ones {text.entropy:.3f} nats")
        print(f"loss {reached:.3f} nats after {options.steps} steps in {perf_counter() - began:.1f} s")
        print(f"peak of tracked bytes {peak / MIB:.1f} MiB, limit {options.max_bytes}\n")
        print(await sample(s, model, text, rng, 200))
    return history, text.entropy, limit


async def sample(s: asc.Scheduler, model: Model, text: Text, rng: np.random.Generator, length: int) -> str:
    """Continue a text: characters drawn one after the other, rather likely ones (temperature 0.7)."""
    numbers = [text.characters.index(c) for c in BEGINNING.rjust(CONTEXT)]
    with asc.no_grad():
        for _ in range(length):
            logits = model(await s.put(np.array([numbers[-CONTEXT:]])))
            shares = await nn.softmax(logits[-1] / 0.7).numpy()
            numbers.append(int(rng.choice(len(shares), p=shares / shares.sum(dtype=np.float64))))
    return "".join(text.characters[n] for n in numbers).strip()


def draw(history: History, entropy: float, limit: int, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    above.plot(history["loss"], linewidth=0.8, label="training loss")
    above.axhline(entropy, color="black", linestyle=":", linewidth=1, label="entropy of single characters")
    above.set(ylabel="nats per character", ylim=(0, None))
    below.plot(np.array(history["bytes"]) / MIB, linewidth=0.8, color="tab:orange", label="tracked bytes")
    below.axhline(limit / MIB, color="black", linestyle="--", linewidth=1, label=f"limit: {limit / MIB:g} MiB")
    below.set(xlabel="step", ylabel="MiB", ylim=(0, None))
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left")
    figure.savefig(path, dpi=150)
    print(f"\nplot: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=320, help="how many (default %(default)s)")
    parser.add_argument("--max-bytes", default="96 MiB", help="the limit on tracked bytes")
    parser.add_argument("--plot", metavar="PATH", default="train_text.png")
    options = parser.parse_args()
    draw(*asyncio.run(train(options)), options.plot)
