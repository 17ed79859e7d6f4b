"""Data sets in files. A recipe of a few lines reads each, by the library made for it.

Each function gives a pipeline, to which `.batch(64).to_device()` may be added. Items that are read by index come in
another order in each epoch. A resumed epoch goes on from `state_dict()` without reading received items again.

    python demos/reading.py

tries them on small files in a temporary folder. `.npy` needs only NumPy, image folders Pillow, Parquet and Arrow
pyarrow, WebDataset's tars webdataset. Recipes without their library are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np

import asyncsched as asc

Pipeline = asc.Pipeline[Any]


def shuffled(count: int, seed: int = 0) -> Callable[[int], Any]:
    """All indices below `count`, in a new order for each epoch."""
    return lambda epoch: np.random.default_rng((seed, epoch)).permutation(count)


def npy(s: asc.Scheduler, path: Path) -> Pipeline:
    """Rows of an array in a file, which is mapped into memory: only rows that are read are loaded."""
    rows = np.load(path, mmap_mode="r")
    return s.pipeline(rows, order=shuffled(len(rows)))


def npy_in_blocks(s: asc.Scheduler, path: Path, size: int) -> Pipeline:
    """Blocks of `size` adjacent rows, which a disk reads faster than scattered rows."""
    rows = np.load(path, mmap_mode="r")
    starts = range(0, len(rows), size)
    return s.pipeline(starts, order=shuffled(len(starts))).map(lambda start: np.array(rows[start : start + size]))


def parquet(s: asc.Scheduler, path: Path, columns: list[str] | None = None) -> Pipeline:
    """Row groups of a Parquet file, as dicts of columns."""
    from pyarrow.parquet import ParquetFile

    def read(group: int) -> dict[str, Any]:
        table = ParquetFile(path).read_row_group(group, columns)  # a file for each: two threads may not share one
        return {name: table[name].to_numpy() for name in table.column_names}

    groups = ParquetFile(path).num_row_groups
    return s.pipeline(range(groups), order=shuffled(groups)).map(read, workers=2)


def arrow(s: asc.Scheduler, path: Path) -> Pipeline:
    """Record batches of an Arrow file, as dicts of columns. The file is mapped, and not copied where that is
    possible."""
    import pyarrow as pa

    file = pa.ipc.open_file(pa.memory_map(str(path)))

    def columns(number: int) -> dict[str, Any]:
        batch = file.get_batch(number)
        return {name: batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names}

    return s.pipeline(range(file.num_record_batches), order=shuffled(file.num_record_batches)).map(columns)


def image_folder(s: asc.Scheduler, folder: Path, side: int = 224) -> Pipeline:
    """Images in a folder for each class, decoded in four threads: (side, side, 3) bytes, and the class's number."""
    from PIL import Image

    paths = sorted(folder.glob("*/*"))
    classes = sorted({path.parent.name for path in paths})

    def decode(path: Path) -> tuple[Any, int]:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((side, side))), classes.index(path.parent.name)

    return s.pipeline(paths, order=shuffled(len(paths))).map(decode, workers=4)


def webdataset(s: asc.Scheduler, tars: list[str]) -> Pipeline:
    """Samples of tars. The tars come in another order in each epoch. Samples are shuffled among 1,000 that are held,
    and then decoded."""
    from PIL import Image
    from webdataset import WebDataset

    def samples(epoch: int) -> Any:
        return WebDataset([tars[i] for i in shuffled(len(tars))(epoch)], shardshuffle=False)

    def decode(sample: dict[str, Any]) -> tuple[Any, int]:
        return np.asarray(Image.open(BytesIO(sample["png"]))), int(sample["cls"])

    return s.pipeline(samples).shuffle(1000, seed=0).map(decode, workers=4)


# From here on: small files, and the recipes' results.


def small_npy(path: Path) -> None:
    np.save(path, np.arange(200, dtype=np.float32).reshape(50, 4))


def small_table() -> dict[str, Any]:
    return {"x": np.arange(40) / 2, "label": np.arange(40) % 3}


def small_parquet(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(small_table()), path, row_group_size=8)


def small_arrow(path: Path) -> None:
    import pyarrow as pa

    table = pa.table(small_table())
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=8)


def small_images(folder: Path) -> None:
    for number, path in enumerate(folder / f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(10)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))


def small_tars(folder: Path) -> list[str]:
    from webdataset import TarWriter

    folder.mkdir()
    for number in range(3):
        with TarWriter(str(folder / f"{number}.tar")) as tar:
            for i in range(10 * number, 10 * number + 10):
                tar.write({"__key__": f"{i:03}", "png": png(i), "cls": i % 2})
    return sorted(map(str, folder.glob("*.tar")))


def png(value: int) -> bytes:
    """An image of one colour."""
    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(buffer, "png")
    return buffer.getvalue()


def recipes(s: asc.Scheduler, folder: Path) -> Iterator[tuple[str, Callable[[], Pipeline]]]:
    """The name of each recipe, and a function that writes small files and opens them."""

    def written(write: Callable[[Path], None], read: Callable[..., Pipeline], name: str, *args: Any) -> Pipeline:
        write(folder / name)
        return read(s, folder / name, *args)

    yield "npy", lambda: written(small_npy, npy, "rows.npy")
    yield "npy in blocks", lambda: written(small_npy, npy_in_blocks, "blocks.npy", 8)
    yield "Parquet", lambda: written(small_parquet, parquet, "table.parquet")
    yield "Arrow", lambda: written(small_arrow, arrow, "table.arrow")
    yield "image folder", lambda: written(small_images, image_folder, "images", 16)
    yield "WebDataset", lambda: webdataset(s, small_tars(folder / "tars"))


async def main() -> None:
    with TemporaryDirectory() as folder:
        async with asc.Scheduler("cpu") as s:
            for name, made in recipes(s, Path(folder)):
                try:
                    pipe = made()
                except ImportError as error:
                    print(f"{name:14} left out: pip install {str(error.name).replace('PIL', 'pillow')}")
                    continue
                async with pipe.open() as items:
                    first = await anext(items)
                    count = 1 + len([item async for item in items])
                print(f"{name:14} {count} items, such as {described(first)}")


def described(item: Any) -> str:
    """Shapes and dtypes."""
    if isinstance(item, dict):
        return "{" + ", ".join(f"{name}: {described(value)}" for name, value in item.items()) + "}"
    if isinstance(item, tuple):
        return "(" + ", ".join(map(described, item)) + ")"
    return f"{item.dtype}{item.shape}" if isinstance(item, np.ndarray) else repr(item)


if __name__ == "__main__":
    asyncio.run(main())
