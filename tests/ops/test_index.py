"""Indexing, assignment and searching, with keys drawn at random too."""

from __future__ import annotations

import random

import numpy as np
import pytest
from conftest import DTYPES, in_every_layout, in_one_item, layouts, values

from asyncsched.ops import TABLE, encode_key, meta, plan

KEYS = (
    0,
    -1,
    7,
    np.int64(1),
    ...,
    None,
    (),
    slice(None),
    slice(1, None),
    slice(None, None, -1),
    slice(5, 1, -2),
    slice(None, None, 0),
    (0, 0),
    (0, 0, 0),
    (..., 0),
    (None, ..., None, 1),
    (slice(None), None, 0),
    (..., ...),
    (slice(0, 0), slice(1, 3)),
)


def encoded(key):
    """The row's suffix, the index arrays and the options for a key of arrays."""
    parts, tensors = encode_key(Wrapped.of(key), Wrapped)
    return [tensor.array for tensor in tensors], {"key": parts}


class Wrapped:
    """Stands for an index tensor."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @classmethod
    def of(cls, key):
        if isinstance(key, tuple):
            return tuple([cls.of(part) for part in key])
        return cls(key) if isinstance(key, np.ndarray) else key


def view(x, key):
    """What a basic index gives, never a scalar."""
    parts = key if isinstance(key, tuple) else (key,)
    return x[key] if Ellipsis in parts else x[(*parts, ...)]


@pytest.mark.parametrize("key", KEYS, ids=str)
@in_every_layout
def test_basic_keys(check, key, layout):
    x = layouts("f4")[layout]
    found = check("getitem")(lambda: view(x, key), x, **encoded(key)[1])
    assert found is None or found.nbytes == 0


@pytest.mark.parametrize("key", [True, np.bool(False), 1.0, "a", [0, 1], (0, [1])], ids=str)
def test_wrong_keys_are_refused(key):
    with pytest.raises(IndexError):
        encode_key(key, Wrapped)


def test_an_ndarray_key_names_the_cure():
    with pytest.raises(TypeError, match=r"await s\.put"):
        encode_key(np.arange(3), Wrapped)


def assigned(x, key, value):
    """A copy of `x` with a part assigned."""
    copy = x.copy(order="K")
    copy[key] = value
    return copy


@pytest.mark.parametrize("key", KEYS, ids=str)
@in_every_layout
def test_assignment(check, key, layout):
    x = layouts("f4")[layout]
    for value in (1, 2.5, np.float64(3), values((4,), "f8"), values((1, 1, 4), "f4"), values((3, 1), "i1"), 1j):
        check("setitem")(lambda v=value: assigned(x, key, v), x, value, **encoded(key)[1])


def test_assignment_of_dtypes(check):
    for dtype in DTYPES:
        x = values((3, 4), dtype)
        for value in (300, -1, True, 2.5, 1j, *[values((4,), d, 1) for d in DTYPES]):
            if x.dtype.kind != "c" and getattr(value, "dtype", x.dtype).kind == "c":
                continue
            check("setitem")(lambda x=x, v=value: assigned(x, 1, v), x, value, key=(1,))


def test_one_element_takes_a_value_with_axes_of_one(check):
    x, one = values((3, 4), "f8"), np.array(1)
    for value in (np.full((1,), 7.0), np.full((1, 1), 7.0)):
        for key in ((1, 2), (one, 2), (one, one)):
            operands, options = encoded(key)
            check("setitem")(lambda v=value: assigned(x, (1, int(key[1]), ...), v), x, value, *operands, **options)  # noqa: B023
        check("setitem")(lambda v=value: assigned(np.zeros(()), ..., v), np.zeros(()), value, key=())


def test_assignment_of_its_own_part(check):
    x = values((6,), "i4")
    check("setitem")(lambda: assigned(x, slice(1, None), x[:-1]), x, x[:-1], **encoded(slice(1, None))[1])


class Elsewhere:
    """NumPy, but not taken for it: as CuPy is, whose writes come in any order."""

    def __getattr__(self, name: str):
        return getattr(np, name)


@pytest.mark.parametrize(
    ("shape", "key", "value"),
    [
        ((4,), (np.array([1, 1, 2, -3]),), (4,)),
        ((4, 3), (np.array([1, 1, 2]),), (1, 3, 1)),
        ((4, 3), (np.array([[1, 1], [2, 1]]), slice(1, None)), (2, 2, 1)),
        ((2, 3, 4), (slice(None), np.array([0, 0, 2, 0]), slice(None, None, -2)), (2, 4, 2)),
        ((3, 2, 4), (np.array([1, 1, 2]), None, 1, np.array([3, -1, 0])), (3, 1)),
        ((3, 4), (np.array([[2], [2]]), np.array([True, False, True, False])), (2, 2)),
    ],
    ids=str,
)
def test_of_several_writes_to_a_place_the_last_stays(shape, key, value):
    x, value = values(shape, "f4"), np.arange(np.prod(value), dtype="f4").reshape(value)
    arrays, options = encoded(key)
    expected, numbers = assigned(x, key, value), np.arange(x.size).reshape(shape)[key]
    np.testing.assert_array_equal(TABLE["setitem"].kernel(Elsewhere(), x, value, *arrays, **options), expected)
    kept = np.array([n not in numbers.ravel()[i + 1 :] for i, n in enumerate(numbers.ravel())]).reshape(numbers.shape)
    for xp in (np, Elsewhere()):
        found = TABLE["last_written"].kernel(xp, *arrays, shape=shape, **options)
        np.testing.assert_array_equal(np.broadcast_to(found, numbers.shape), kept)
    planned = plan(TABLE["last_written"], tuple([meta(a.shape, a.dtype) for a in arrays]), {"shape": shape, **options})
    assert [n in (None, m) for n, m in zip(planned.meta.shape, found.shape, strict=True)] == [True] * found.ndim


@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True)], ids=["value", "indices", "both"])
def test_the_last_of_several_writes_is_that_in_c_order_whatever_the_layouts(turned):
    rng = np.random.default_rng(0)
    for shapes, value in [
        ([(3, 4, 1)], (3, 1, 1)),
        ([(3, 4)], (3, 4)),
        ([(2, 3, 1), (1, 3, 4)], (1, 4)),
        ([(3, 1, 3), (3, 3)], (3, 3, 3)),
        ([(1, 1, 1), (2, 3), (1, 2, 1)], (1, 2, 3)),
    ] * 20:
        indices = [rng.integers(-2, 2, shape) for shape in shapes]
        written = np.arange(1.0, 1 + np.prod(value)).reshape(value)
        expected = np.zeros((2,) * len(indices))
        whole = np.broadcast_arrays(*indices, written)[:-1]
        for place in np.ndindex(whole[0].shape):
            expected[tuple([index[place] for index in whole])] = np.broadcast_to(written, whole[0].shape)[place]
        turn = [np.asfortranarray if one else np.array for one in turned]
        arrays, options = encoded(tuple([turn[1](index) for index in indices]))
        found = TABLE["setitem"].kernel(np, np.zeros_like(expected), turn[0](written), *arrays, **options)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "key", [0, (..., 1), (slice(None), 0, slice(1, None)), np.array([2, 0, 2]), np.array([0, 1, 1]) > 0]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_assignment_to_a_view_at_the_end_of_a_path(check, key, order):
    """The new version is in C order, and `x` itself where it may be written over."""
    views = (
        ("permute_dims", {"axes": (2, 0, 1)}),
        ("getitem", {"key": encoded(slice(1, None))[1]["key"]}),
        ("flip", {"axis": 0}),
    )
    path = tuple([(TABLE[name], tuple(options.items())) for name, options in views])
    x = np.asarray(values((2, 3, 4), "f4"), order=order)
    arrays, options = encoded(key)

    def assigned_there(value):
        whole = x.copy()
        np.flip(whole.transpose(2, 0, 1)[1:], 0)[key] = value
        return whole

    for value in (5, values((3,), "f4", 1), values((1, 9), "f4"), 1j):
        check("setitem")(lambda v=value: assigned_there(v), x, value, *arrays, path=path, **options)
    for xp in (np, Elsewhere()):
        whole = x.copy()
        assert TABLE["setitem"].kernel(xp, whole, 5, *arrays, path=path, out=whole, **options) is whole
        np.testing.assert_array_equal(whole, assigned_there(5))


def test_writes_of_a_turned_value_are_charged_its_copy():
    f8, index = np.dtype("f8"), meta((5, 6), np.dtype("i8"), False)
    flat, turned = [
        plan(TABLE["setitem"], (meta((4,), f8), meta((5, 6), f8, in_order), index), {"key": ("tensor",)}).workspace
        for in_order in (True, False)
    ]
    assert turned - flat == 240


def random_key(rng: random.Random, shape: tuple[int, ...]) -> tuple:
    """A key with at least one index array, right more often than not."""
    while True:
        key, axis = [], 0
        while axis < len(shape) and rng.random() < 0.85:
            part, consumed = random_part(rng, shape[axis:])
            key.append(part)
            axis += consumed
        if rng.random() < 0.3 and not any(part is ... for part in key):
            key.insert(rng.randrange(len(key) + 1), ...)
        if any(isinstance(part, np.ndarray) for part in key):
            return tuple(key)


def random_part(rng: random.Random, shape: tuple[int, ...]):
    """A part of a key, and how many axes it takes."""
    length = shape[0]
    kind = rng.choice(["int", "slice", "step", "all", "none", "array", "array", "flat", "mask", "wide mask"])
    if kind == "int":
        return rng.randrange(-length, length + (rng.random() < 0.1)), 1
    if kind == "none":
        return None, 0
    if kind in ("slice", "step", "all"):
        return {"slice": slice(1, 3), "step": slice(None, None, -1), "all": slice(None)}[kind], 1
    generator = np.random.default_rng(rng.randrange(1000))
    if kind == "mask":
        return generator.random(length) < 0.5, 1
    if kind == "wide mask" and len(shape) > 1:
        return generator.random(shape[:2]) < 0.5, 2
    size = {"flat": (2, 3)}.get(kind, (3,))
    indices = generator.integers(-length, length, size)
    return rng.choice([indices, np.asfortranarray(indices), indices.astype("i2"), indices[:1], indices[0]]), 1


@in_one_item(seed=range(200))
def test_random_keys_with_tensors(check, seed):
    rng = random.Random(seed)
    for layout in ("cube", "turned cube", "c", "fortran", "columns", "backwards"):
        x = layouts("f4")[layout]
        key = random_key(rng, x.shape)
        if runs_only(x, key):
            continue
        arrays, options = encoded(key)
        check("getitem_advanced")(lambda x=x, k=key: x[k], x, *arrays, **options)
        for value in (2, values(np.shape(x[key]) if not fails(x, key) else (), "f4", 1), values((7,), "f4")):
            if not runs_only(x, key, value):
                check("setitem")(lambda x=x, k=key, v=value: assigned(x, k, v), x, value, *arrays, **options)


def fails(x, key) -> bool:
    try:
        x[key]
    except IndexError:
        return True
    return False


def runs_only(x, key, value=0) -> bool:
    """Whether a mask is in the key that fails when it runs: how many it selects is not known before."""
    if not any(isinstance(part, np.ndarray) and part.dtype == bool for part in key):
        return False
    try:
        assigned(x, key, value)
    except (ValueError, IndexError):
        return True
    return False


def test_masks_have_an_unknown_length(check):
    x = values((3, 4), "f4")
    found = check("getitem_advanced")(lambda: x[x > 0], x, x > 0, key=("tensor",))
    assert (found.meta.shape, found.meta.bound, found.quick) == ((None,), (12,), False)
    rows = np.array([True, False, True])
    found = check("getitem_advanced")(lambda: x[rows], x, rows, key=("tensor",))
    assert (found.meta.shape, found.meta.bound) == ((None, 4), (3, 4))


@pytest.mark.parametrize("index", [values((2,), "f4"), values((4,), "?"), values((3, 3), "?"), values((), "c8")])
def test_tensors_that_are_no_index(check, index):
    x = values((3, 4), "f4")
    check("getitem_advanced")(lambda: x[index], x, index, key=("tensor",))


@in_every_layout
def test_take(check, layout):
    x = layouts("f4")[layout]
    for indices in ([0, 2], [[0], [-1]], [], 1, np.array([1, 0], "i1"), np.array([0], "u8"), np.array([0.0])):
        for axis in (None, 0, 1, -1, 5):
            array = np.asarray(indices, None if np.size(indices) else "i8")
            length = x.size if axis is None or not -x.ndim <= axis < x.ndim else x.shape[axis]
            if length and any(not -length <= i < length for i in array.ravel()):
                continue
            check("take")(lambda a=axis, i=array: np.take(x, i, axis=a), x, array, axis=axis)


def test_nothing_is_taken_from_an_empty_axis(check):
    for shape in ((0, 0, 1), (0, 0), (2, 0), (0,)):
        for axis in (None, *range(-len(shape), len(shape))):
            x, indices = np.zeros(shape), np.zeros(3, int)
            check("take")(lambda x=x, i=indices, a=axis: np.take(x, i, axis=a), x, indices, axis=axis)


def test_take_refuses_indices_out_of_range():
    from asyncsched.ops import TABLE, resolve

    kernel = resolve(TABLE["take"], np)
    out = np.zeros(1, "f4")
    with pytest.raises(IndexError):
        kernel(values((3,), "f4"), np.array([3]), axis=0, out=out)


@in_every_layout
def test_take_along_axis(check, layout):
    x = layouts("f4")[layout]
    for shape in ((3, 2), (1, 5), (3, 0), (2, 2), (2,), (2, 3, 1), (1, 1, 2)):
        for axis in (0, -1, 5):
            indices = np.zeros(shape, "i8")
            if x.ndim == len(shape) and axis != 5 and x.shape[axis] == 0 and 0 not in shape:
                continue
            check("take_along_axis")(lambda i=indices, a=axis: np.take_along_axis(x, i, a), x, indices, axis=axis)
    check("take_along_axis")(lambda: np.take_along_axis(x, np.zeros(x.shape), 0), x, np.zeros(x.shape), axis=0)


@in_every_layout
def test_argwhere(check, x):
    check("argwhere")(lambda: np.stack(np.nonzero(x), axis=-1), x)


@pytest.mark.parametrize("side", ["left", "right", "middle"])
@in_every_layout
def test_searchsorted(check, side, layout):
    ordered = np.sort(values((6,), "f4", 1))
    for x in (layouts("f4")[layout], layouts("i8")[layout]):
        check("searchsorted")(lambda x=x: np.searchsorted(ordered, x, side=side), ordered, x, side=side)
    shuffled, sorter = values((6,), "f4", 1), np.argsort(values((6,), "f4", 1))
    x = layouts("f4")[layout]
    check("searchsorted")(lambda: np.searchsorted(shuffled, x, sorter=sorter), shuffled, x, sorter)
