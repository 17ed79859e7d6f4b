"""Training a PyTorch module with its own optimiser, fed and bounded by asyncsched.

Images of handwritten digits are in memory as JPEGs, and are decoded anew in every epoch. First PyTorch's plain loop:
decode a batch, forward, backward, step. Then the same as a guest. A pipeline decodes ahead, in threads. Forward,
backward and step are three tasks of one resource, so they run one after the other on one stream. A window keeps two
steps in flight, and the losses are awaited at the end of an epoch. PyTorch's allocations in a task are measured in the
first steps and charged to later ones, which wait if there is no room. Both ways end with the same weights, bit for bit.

At the end a step fails, and another is cancelled. Both are skipped as a whole, as with `asyncsched.optim`: gradients
are cleared when a step begins, and the optimiser moves only when its gradients are there. Two things cannot be undone:
state that a module moves in its forward pass (a BatchNorm's statistics, a generator's position), and an optimiser that
fails half way. After the latter every step is refused. If a step is cancelled while the optimiser moves, the weights
have moved all the same.

    python demos/pytorch_training.py [--epochs 3] [--max-bytes "64 MiB"]         needs PyTorch and Pillow
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from time import perf_counter
from typing import Any

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np
from tqdm import tqdm

import asyncsched as asc

try:
    import torch
    from PIL import Image
except ImportError as error:
    sys.exit(f"{error.name} is not installed: pip install torch pillow")

IMAGES, SIDE, BATCH = 640, 256, 64
MIB = 2**20
M_TOP_PAD = -2  # of glibc's malloc.h


class Files:
    """Handwritten digits as JPEGs of 256 x 256 pixels, and their labels."""

    def __init__(self, count: int = IMAGES) -> None:
        from sklearn.datasets import load_digits

        images, self.labels = load_digits(return_X_y=True)
        self.files = [self._encoded(image.reshape(8, 8) * 15.9) for image in images[:count]]

    @staticmethod
    def _encoded(pixels: np.ndarray) -> bytes:
        file = BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).resize((SIDE, SIDE)).save(file, "jpeg", quality=95)
        return file.getvalue()

    def epoch(self, number: int) -> Sequence[int]:
        """The order of the files."""
        return np.random.default_rng(number).permutation(len(self.files)).tolist()

    def example(self, i: int) -> tuple[np.ndarray, np.int64]:
        """An image as (1, 32, 32) float32 between -1 and 1, and its label. The decoder lets other threads run."""
        pixels = np.asarray(Image.open(BytesIO(self.files[i])).resize((32, 32)), np.float32)
        return pixels[None] / 127.5 - 1, self.labels[i]


def keep_freed_memory(nbytes: int = 64 * MIB) -> None:
    """Have glibc keep the memory that a step freed for the next one. In threads it gives memory back to the system
    after each step, so page faults take a quarter of a step's time. It is a setting of the process. With another C
    library nothing happens."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(M_TOP_PAD, nbytes)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip


class Guest:
    """A module and its optimiser as tasks. For one coroutine: two that train the same module would mix their
    gradients."""

    def __init__(self, s: asc.Scheduler, module: torch.nn.Module) -> None:
        self.s, self.module = s, module
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
        self.cost = asc.LearnedCost(first="24 MiB")
        self.moving = False
        # Weights and two moments: a result that is no array stays charged until its handle drops.
        weights = sum(p.nbytes for p in module.parameters())
        self.charged = s.submit_nowait(lambda: module, name="weights and moments", nbytes=3 * weights)

    async def step(self, images: asc.Tensor, labels: asc.Tensor) -> asc.Task[float]:
        """Issue a step. Waits until its forward pass is admitted. The task is done when the optimiser has moved."""
        loss = await self.s.submit(self.forward, images, labels, nbytes=self.cost, resource=self)
        loss = self.s.submit_nowait(self.backward, loss, nbytes=self.cost, resource=self)
        return self.s.submit_nowait(self.move, loss, nbytes=self.cost, resource=self)

    def forward(self, images: np.ndarray, labels: np.ndarray) -> torch.Tensor:
        """The loss. It is charged the bytes that the pass left behind, its graph, until the backward pass is over."""
        if self.moving:
            raise RuntimeError("the optimiser failed in the middle of a step: go on from a checkpoint")
        self.optimizer.zero_grad()  # gradients of a step that was given up
        x, y = torch.from_dlpack(images), torch.from_dlpack(labels)  # in the same memory
        return torch.nn.functional.cross_entropy(self.module(x), y)

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss without its graph. It is a tensor, too, and is charged the bytes that this pass left behind: the
        gradients."""
        loss.backward()
        return loss.detach()

    def move(self, loss: torch.Tensor) -> float:
        self.moving = True
        self.optimizer.step()
        self.moving = False
        return loss.item()


def plain(files: Files, epochs: int) -> tuple[torch.nn.Module, list[float], float]:
    """PyTorch's loop. Returns the module, the losses, and the seconds that it took."""
    module = network()
    optimizer, losses, began = torch.optim.AdamW(module.parameters(), lr=2e-3), [], perf_counter()
    for epoch in range(epochs):
        order = files.epoch(epoch)
        for start in progress(range(0, len(order), BATCH), "plain loop"):
            images, labels = zip(*[files.example(i) for i in order[start : start + BATCH]], strict=True)
            optimizer.zero_grad()
            x, y = torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(labels))
            loss = torch.nn.functional.cross_entropy(module(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return module, losses, perf_counter() - began


async def as_a_guest(files: Files, epochs: int, s: asc.Scheduler) -> tuple[Guest, list[float], float]:
    """The same as tasks."""
    guest = Guest(s, network())
    window, losses, began = s.window(2), [], perf_counter()
    batches = s.pipeline(files.epoch).map(files.example, workers=2).batch(BATCH).to_device(depth=2)
    for _ in range(epochs):
        tasks = []
        with progress(None, "as a guest", len(files.files) // BATCH) as bar:
            async with batches.open() as items:
                async for images, labels in items:
                    async with window:
                        tasks.append(await guest.step(images, labels))
                    del images, labels
                    bar.update()
        losses += await asc.gather(*tasks)
    return guest, losses, perf_counter() - began


def progress(items: Any, what: str, total: int | None = None) -> Any:
    return tqdm(items, what, total, unit="batch", leave=False, disable=None)


async def give_up(guest: Guest, files: Files) -> None:
    """A step that fails, and one that is cancelled: neither moves the weights."""
    before = [p.clone() for p in guest.module.parameters()]
    images, labels = (np.stack(part) for part in zip(*map(files.example, range(BATCH)), strict=True))
    x, y, wrong = await guest.s.put(images), await guest.s.put(labels), await guest.s.put(labels + 10)
    try:
        await (await guest.step(x, wrong))
    except IndexError as error:
        print(f"a step with a wrong label failed: {type(error).__name__}: {error}")
    task = await guest.step(x, y)
    told = task.cancel()
    await guest.s.barrier()
    moved = not all(map(torch.equal, before, guest.module.parameters()))
    print(f"a step was {'cancelled' if told else 'over before it could be cancelled'}")
    print("the weights are " + ("those after the step that was not cancelled in time" if moved else "as before both"))
    print(f"the step after them: loss {await (await guest.step(x, y)):.4f}")


async def main(options: argparse.Namespace) -> None:
    files = Files()
    module, expected, alone = plain(files, options.epochs)
    async with asc.Scheduler("cpu", max_bytes=options.max_bytes) as s:
        guest, losses, seconds = await as_a_guest(files, options.epochs, s)
        same = all(map(torch.equal, module.parameters(), guest.module.parameters()))
        print(f"plain loop {alone:.2f} s, as a guest {seconds:.2f} s ({seconds / alone:.2f} times as long)")
        alike = "the same" if losses == expected else "NOT the same"
        print(f"losses from {losses[0]:.3f} to {losses[-1]:.3f}, {alike}")
        print(f"weights {'the same to the last bit' if same else 'NOT the same'}")
        found = s.statistics()
        print(f"peak of tracked bytes {found.peak_bytes / MIB:.1f} MiB, of {options.max_bytes}; learned: {guest.cost}")
        await give_up(guest, files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-bytes", default="64 MiB", help="the limit on tracked bytes (default %(default)s)")
    torch.set_num_threads(1)  # the other processors decode
    keep_freed_memory()
    asc.run(main(parser.parse_args()))
