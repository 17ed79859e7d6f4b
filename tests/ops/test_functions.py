"""The functions: names and signatures of the array API, and values against eager NumPy through a scheduler."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from conftest import assert_same, values

import asyncsched as asc
from asyncsched.tensors import functions as f
from tests.waiting import held

pytestmark = pytest.mark.one_loop
_NAMES = """
abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2 atanh bitwise_and
bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor broadcast_arrays broadcast_shapes
broadcast_to can_cast ceil clip concat conj copysign cos cosh count_nonzero cumulative_prod cumulative_sum diff divide
empty empty_like equal exp expand_dims expm1 eye finfo flip floor floor_divide from_dlpack full full_like greater
greater_equal hypot iinfo imag isdtype isfinite isin isinf isnan less less_equal linspace log log10 log1p log2
logaddexp logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min minimum
moveaxis multiply negative nextafter nonzero not_equal ones ones_like permute_dims positive pow prod real reciprocal
remainder repeat reshape result_type roll round searchsorted sign signbit sin sinh sort sqrt square squeeze stack std
subtract sum take take_along_axis tan tanh tensordot tile tril triu trunc unique_all unique_counts unique_inverse
unique_values unstack var vecdot where zeros zeros_like
"""
_LINALG = """
cholesky cross det diagonal eig eigh eigvals eigvalsh inv matmul matrix_norm matrix_power matrix_rank matrix_transpose
outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm
"""
_FFT = "fft fftfreq fftn fftshift hfft ifft ifftn ifftshift ihfft irfft irfftn rfft rfftfreq rfftn"
STANDARD = _NAMES.split()


def test_the_standard_is_complete():
    assert set(STANDARD) <= set(f.__all__)
    assert set(_LINALG.split()) == set(asc.linalg.__all__) - {"LinAlgError"}
    assert set(_FFT.split()) == set(asc.fft.__all__) == set(dir(asc.fft)) - {"__doc__"}
    assert asc.__array_api_version__ == "2025.12"
    assert len(f.__all__) == len(set(f.__all__))


def test_signatures_and_docs():
    assert str(inspect.signature(f.add)) == "(x1: 'Operand', x2: 'Operand', /) -> 'Tensor'"
    for name in STANDARD:
        function = getattr(f, name)
        assert function.__name__ == name
        assert function.__doc__


X = values((3, 4), "f4")
Y = values((4,), "f8", 1)
I4 = values((3, 4), "i4")

CASES = [
    (lambda m, x, y, i: m.add(x, y), None),
    (lambda m, x, y, i: m.sqrt(m.abs(x)), None),
    (lambda m, x, y, i: m.sum(x, axis=0, keepdims=True), None),
    (lambda m, x, y, i: m.sum(i, dtype="f4"), None),
    (lambda m, x, y, i: m.var(x, axis=(0, 1), correction=1), None),
    (lambda m, x, y, i: m.cumulative_sum(x, axis=1, include_initial=True), None),
    (lambda m, x, y, i: m.matmul(x, y), None),
    (lambda m, x, y, i: m.tensordot(x, i, axes=([0, 1], [0, 1])), None),
    (lambda m, x, y, i: m.vecdot(x, y), None),
    (lambda m, x, y, i: m.concat([x, x], axis=1), None),
    (lambda m, x, y, i: m.stack([y, y], axis=-1), None),
    (lambda m, x, y, i: m.moveaxis(m.expand_dims(x, axis=0), 0, -1), None),
    (lambda m, x, y, i: m.flip(x, axis=[1]), lambda m, x, y, i: m.flip(x, axis=1)),
    (lambda m, x, y, i: m.reshape(x, 12), None),
    (lambda m, x, y, i: m.repeat(x, 2, axis=1), None),
    (lambda m, x, y, i: m.tile(x, (2, 1)), None),
    (lambda m, x, y, i: m.unstack(x, axis=1)[2], None),
    (lambda m, x, y, i: m.broadcast_arrays(x, y)[1], None),
    (lambda m, x, y, i: m.meshgrid(y, y)[0], lambda m, x, y, i: m.meshgrid(y, y, copy=False)[0]),
    (
        lambda m, x, y, i: m.meshgrid(y, y, indexing="ij")[0],
        lambda m, x, y, i: m.meshgrid(y, y, indexing="ij", copy=False)[0],
    ),
    (lambda m, x, y, i: m.where(x > 0, x, 0), None),
    (lambda m, x, y, i: m.clip(x, -0.5, 0.5), None),
    (lambda m, x, y, i: m.clip(x, y, None), None),
    (lambda m, x, y, i: m.clip(i, -(2**40), 3), None),
    (lambda m, x, y, i: m.sort(x, axis=0), None),
    (lambda m, x, y, i: m.argmax(x, axis=1), None),
    (lambda m, x, y, i: m.nonzero(i)[1], None),
    (lambda m, x, y, i: m.take(x, i[0] % 3, axis=0), None),
    (lambda m, x, y, i: m.searchsorted(m.sort(y), x), None),
    (lambda m, x, y, i: m.diff(x, axis=0, prepend=x), None),
    (lambda m, x, y, i: m.diff(x, n=0), None),
    (lambda m, x, y, i: m.zeros_like(m.permute_dims(x, (1, 0))), None),
    (lambda m, x, y, i: m.full_like(x, 2.5, dtype="f8"), None),
    (lambda m, x, y, i: m.ones((2, 3), dtype="i1"), None),
    (lambda m, x, y, i: m.full(3, 7), None),
    (lambda m, x, y, i: m.arange(2, 11, 3), None),
    (lambda m, x, y, i: m.arange(4.0), None),
    (lambda m, x, y, i: m.linspace(0, 1, 5, endpoint=False), None),
    (lambda m, x, y, i: m.eye(3, k=1), None),
    (lambda m, x, y, i: m.tril(x, k=-1), None),
    (lambda m, x, y, i: m.asarray(3.5, dtype="f4"), None),
    (lambda m, x, y, i: m.astype(x, "i4"), None),
]


@pytest.mark.parametrize(("case", "eager"), CASES, ids=range(len(CASES)))
async def test_values(s, case, eager):
    expected = np.asarray((eager or case)(np, X, Y, I4))
    x, y, i = await s.put(X), await s.put(Y), await s.put(I4)
    result = case(f, x, y, i)
    assert result.dtype == expected.dtype
    assert all(n in (None, m) for n, m in zip(result.shape, expected.shape, strict=True))
    assert_same(await result, expected)


async def test_wrong_arguments_are_refused(s, gate):
    x = await s.put(X)
    late = s.submit_nowait(held, gate, X > 0, shape=X.shape, dtype=bool)
    with pytest.raises(TypeError, match=r"await s\.put"):
        f.asarray(X)
    with pytest.raises(TypeError, match="an int or a tensor of integers"):
        f.repeat(x, 1.5)
    with pytest.raises(TypeError, match="repeats must be integers"):
        f.repeat(x, x)
    with pytest.raises(ValueError, match="`await` it first"):
        f.unstack(x[late])
    gate.set()
    assert f.asarray(x) is x
    assert f.result_type(x, 1.0) == np.float32
    assert f.finfo(x).bits == 32
    assert f.isdtype(x.dtype, ("real floating", "bool"))
    assert f.can_cast(x, "f8")
    await s.barrier()
