"""Making one batch of many items."""

from __future__ import annotations

import weakref
from collections import namedtuple
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline import collate as module
from asyncsched.flow.pipeline.collate import collate

from .rig import drain

Pair = namedtuple("Pair", "x y")


def test_arrays_and_numbers_are_stacked() -> None:
    assert collate([np.zeros((2, 3), np.float32)] * 4).shape == (4, 2, 3)
    assert collate([np.zeros((2, 3), np.float32)] * 4).dtype == np.float32
    assert collate([1, 2]).tolist() == [1, 2]
    assert collate([np.float32(1), np.float32(2)]).dtype == np.float32
    assert collate([True, False]).dtype == np.bool_
    assert collate([1.5, 2]).dtype == np.float64
    assert collate([1j]).dtype == np.complex128


def test_masks_are_stacked_too() -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for items in ([masked, masked], [np.ones(2), masked]):
        assert collate(items).mask[-1].tolist() == [False, True]


def test_fields_are_collated_by_themselves() -> None:
    x, y = collate([(np.ones(2), 1), (np.ones(2), 2)])
    assert (x.shape, y.tolist()) == ((2, 2), [1, 2])
    found = collate([{"a": [1, "one"], "b": Pair(1, None)}, {"b": Pair(2, None), "a": [2, "two"]}])
    assert found["a"][0].tolist() == [1, 2]
    assert found["a"][1] == ["one", "two"]
    assert isinstance(found["b"], Pair)
    assert found["b"].y == [None, None]


class Image:
    """What NumPy can make an array of."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.full((2, 2), self.value, np.uint8)


def test_what_numpy_takes_for_an_array_is_stacked() -> None:
    found = collate([(Image(1), 0), (Image(2), 1)])
    assert (found[0].shape, found[0].dtype) == ((2, 2, 2), np.uint8)
    assert found[0][1].tolist() == [[2, 2], [2, 2]]
    mapped = collate([MappingProxyType({"x": 1.0}), MappingProxyType({"x": 2.0})])
    assert mapped["x"].tolist() == [1.0, 2.0]


def test_as_pytorch_does(torch: Any) -> None:
    items = [(torch.full((2,), i, dtype=torch.int16), i / 2, {"name": f"{i}", "at": [i, i]}) for i in range(3)]
    ours, theirs = collate(items), torch.utils.data.default_collate(items)
    assert np.array_equal(ours[0], theirs[0].numpy())
    assert ours[0].dtype == np.int16
    assert np.array_equal(ours[1], theirs[1].numpy())
    assert ours[2]["name"] == theirs[2]["name"] == ["0", "1", "2"]
    assert [x.tolist() for x in ours[2]["at"]] == [x.tolist() for x in theirs[2]["at"]]


async def test_handles_stay_a_list(s: asc.Scheduler) -> None:
    tensors = [await s.put(np.ones(2)), await s.put(np.ones(2))]
    assert all(one is other for one, other in zip(collate(tensors), tensors, strict=True))


@pytest.mark.parametrize(
    ("items", "what"),
    [
        ([np.ones(2), np.ones(3)], "shape"),
        ([np.ones(2), 3], "shape"),
        ([(1, 2), (1,)], "length"),
        ([{"a": 1}, {"b": 1}], "keys"),
    ],
)
def test_items_that_differ_are_refused_with_a_cure(items: list[Any], what: str) -> None:
    with pytest.raises(ValueError, match=rf"differ in {what}: .* and, at 1, .*; make them alike in a `.map` before"):
        collate(items)


# -- packed as they come ---------------------------------------------------------------------------------------------

SIZE = 12  # of a batch, of items of 200 KB: packed three at a time


def image(i: int, dtype: Any = np.float32, side: int = 224) -> np.ndarray[Any, Any]:
    return np.full((side, side), i, dtype)


ITEMS: dict[str, Callable[[int], Any]] = {
    "arrays": image,
    "tuples": lambda i: (image(i), i, f"{i}"),
    "named tuples": lambda i: Pair(image(i), {"mask": image(i, bool), "none": None}),
    "lists in dicts": lambda i: {"images": [image(i), image(-i, np.int16)], "label": np.float32(i)},
    "keys in another order": lambda i: {"a": image(i), "b": i} if i % 2 else {"b": i, "a": image(i)},
    "arrays in another order": lambda i: dict(sorted({"a": image(i), "b": image(-i)}.items(), reverse=bool(i % 2))),
    "another dtype later": lambda i: (image(i, np.float64 if i == 7 else np.float32), i),
    "columns first": lambda i: image(i).T,
    "one with columns first": lambda i: image(i).T if i == 5 else image(i),
    "bytes in another order": lambda i: image(i, ">f4"),
    "objects": lambda i: image(i, object, side=150),
    "views": lambda i: image(i)[::2],
    "masked": lambda i: np.ma.array(image(i), mask=image(i) > 5),
    "one masked": lambda i: np.ma.array(image(i), mask=image(i) > 5) if i == 4 else image(i),
    "small ones beside": lambda i: (np.full(3, i), image(i), np.full((), i)),
    "empty ones": lambda i: (image(i), np.ones((0, 3))),
    "a subclass": lambda i: image(i).view(np.memmap),
    "what NumPy takes": lambda i: (image(i), Image(i)),
    "another mapping": lambda i: MappingProxyType({"x": image(i)}),
}


def layout(batch: Any) -> Any:
    """All that there is to tell of a batch, to be compared."""
    if isinstance(batch, np.ndarray):
        masks = np.ma.getmaskarray(batch).tobytes() if isinstance(batch, np.ma.MaskedArray) else b""
        order = (batch.flags.c_contiguous, batch.flags.f_contiguous)
        values = batch.tolist() if batch.dtype.hasobject else batch.tobytes()
        return type(batch), batch.shape, batch.dtype.str, order, batch.flags.owndata, values, masks
    if isinstance(batch, dict):
        return {key: layout(value) for key, value in batch.items()}
    return (type(batch), *map(layout, batch)) if isinstance(batch, tuple) else batch


@pytest.mark.parametrize("make", ITEMS.values(), ids=ITEMS)
async def test_packed_as_they_come_batches_are_what_they_are_at_once(
    s: asc.Scheduler, make: Callable[[int], Any]
) -> None:
    found = await drain(s.pipeline(range(2 * SIZE + 5)).map(make, workers=2).batch(SIZE))
    for number, batch in enumerate(found):
        items = [make(i) for i in range(number * SIZE, min((number + 1) * SIZE, 2 * SIZE + 5))]
        assert layout(batch) == layout(collate(items))
    assert len(found) == 3


@pytest.mark.parametrize("number", [1, 7, 11])
async def test_what_does_not_agree_is_told_as_it_is_at_once(s: asc.Scheduler, number: int) -> None:
    pipe = s.pipeline(range(SIZE)).map(lambda i: (image(i, side=224 + (i == number)), i)).batch(SIZE)
    with pytest.raises(ValueError, match=rf"differ in shape: \(224, 224\) and, at {number}, \(225, 225\)"):
        await drain(pipe)


async def test_where_there_is_no_room_to_pack_they_are_stacked_in_the_end(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def empty(*args: Any) -> Any:
        made.append(args)
        raise MemoryError

    monkeypatch.setattr(module.np, "empty", empty)
    [batch] = await drain(s.pipeline(range(SIZE)).map(image).batch(SIZE))
    assert (batch[:, 0, 0].tolist(), len(made)) == (list(range(SIZE)), 1)


async def test_few_items_live_beside_what_is_made_of_them(s: asc.Scheduler) -> None:
    """An item is free when it is packed, and where that takes long no more are read."""
    alive: set[int] = set()
    most = 0

    def make(i: int) -> np.ndarray[Any, Any]:
        nonlocal most
        found = np.full(16_384, i, np.float32)
        weakref.finalize(found, alive.discard, i)
        alive.add(i)
        most = max(most, len(alive))
        return found

    pipe = s.pipeline(range(512)).map(make, workers=1, buffer=3).batch(128)
    assert [batch[:, 0].tolist() for batch in await drain(pipe)] == np.arange(512).reshape(4, 128).tolist()
    assert most <= 2 * 64 + 4  # a part that is packed, one that waits, and what the stage before has
    assert not alive


async def test_an_error_of_one_batch_ends_the_next_which_is_packed(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(10 * SIZE)).map(lambda i: image(i, side=224 + (i == 1))).batch(SIZE)
    for _ in range(2):
        with pytest.raises(ValueError, match="differ in shape"):
            await drain(pipe)
    assert pipe.statistics().stages[-1].items == 0
