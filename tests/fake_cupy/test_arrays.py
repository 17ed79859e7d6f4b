"""Arrays and functions are CuPy's in what they take, and NumPy's in what they give."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest


def test_an_ndarray_of_numpy_is_refused(one, cupy):
    x = cupy.ones(4)
    for call in (lambda: x + np.ones(4), lambda: cupy.add(np.ones(4), x), lambda: np.ones(4) + x):
        with pytest.raises(TypeError, match="Unsupported type"):
            call()
    with pytest.raises(TypeError, match="Implicit conversion to a NumPy array is not allowed"):
        np.asarray(x)


def test_only_what_cupy_has(one, cupy):
    with pytest.raises(AttributeError, match="writeable"):
        cupy.ones(4).flags.writeable  # noqa: B018
    assert isinstance(cupy.exp, cupy.ufunc)
    assert not isinstance(cupy.matmul, cupy.ufunc)


def test_views_share_memory_and_collapse_to_the_owner(one, cupy):
    x = cupy.arange(12).reshape(3, 4)
    owner = x.base
    assert owner.flags.owndata
    for view in (
        x[1:],
        x.T[::-1],
        x[0, 0],
        x.reshape(-1),
        cupy.broadcast_to(x, (2, 3, 4)),
        cupy.flip(x),
        cupy.lib.stride_tricks.as_strided(x, (2, 2), (4, 4)),
    ):
        assert view.base is owner
        assert not view.flags.owndata
    assert x[2, 1].data.ptr == x.data.ptr + 9 * 8
    x[1:][0, 0] = 99
    assert int(x[1, 0]) == 99


def test_the_owner_can_be_watched(one, cupy):
    x = cupy.arange(12)
    gone = []
    watch = weakref.ref(x, gone.append)
    view = x[2:]
    del x
    assert watch() is view.base
    del view
    gc.collect()
    assert gone


def test_shapes_that_depend_on_data_are_waited_for(fake, cupy, a):
    with a:
        x = cupy.arange(6) % 3
        assert x[x > 0].get().tolist() == [1, 2, 1, 2]
        assert [part.tolist() for part in cupy.nonzero(x)] == [[1, 2, 4, 5]]
        x[x > 1] = 7
        assert x.tolist() == [0, 1, 7, 0, 1, 7]
    assert fake.problems() == []


def test_dlpack_orders_the_consumers_stream(one, cupy, a, b):
    with a:
        x = cupy.ones(4)

    class Export:
        """As from a library whose current stream is `a`."""

        __dlpack_device__ = x.__dlpack_device__

        def __dlpack__(self, *, stream: int) -> Any:
            with a:
                return x.__dlpack__(stream=stream)

    with b:
        assert (cupy.from_dlpack(Export()) + 1).get().tolist() == [2.0] * 4
    assert one.problems() == []
    with b, pytest.raises(TypeError, match="CPU arrays"):
        cupy.from_dlpack(np.ones(4))


def test_an_error_in_a_kernel_is_kept_for_the_test(one, cupy):
    x = cupy.arange(4)
    cupy.choose(x, [x, x])
    one.settle()
    assert "ValueError" in one.kernel_errors[0]


def test_ufuncs_add_at_indices_and_reduce(one, cupy, a):
    import cupyx

    with a:
        x = cupy.zeros(3)
        cupy.add.at(x, cupy.asarray([0, 0, 2]), 1)
        cupyx.scatter_add(x, cupy.asarray([1]), 5)
        assert x.get().tolist() == [2, 5, 1]
        assert cupy.maximum.reduce(x).item() == 5
    assert one.problems() == []
