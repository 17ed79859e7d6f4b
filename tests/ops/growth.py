"""How much a process grows by each operation of the table, beside what is charged for it: run by `test_process_growth`.

A process of its own: what was freed before would hide what is taken. Its allocator is told to give back what is large
at once (by the environment, see the test), so that operations may follow each other.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from asyncsched.ops import TABLE, meta, plan, resolve
from asyncsched.ops.index_keys import TENSOR, Slice
from asyncsched.ops.kernels import compiled
from tests.declared import ARITIES
from tests.network_rows import network_rows_given

N = 1 << 18
PRIME = 262_147
_RNG = np.random.default_rng(0)
ALL = Slice(None, None, None)


def real(*shape: int, dtype: str = "f8") -> np.ndarray:
    return _RNG.uniform(0.5, 1.5, shape).astype(dtype)


X, WIDE, LINE, TURNED = real(512, 512), real(8, N >> 3), real(N), real(512, 512).T
SINGLE, WHOLE, ROWS = real(512, 512, dtype="f4"), np.arange(N).reshape(512, 512) % 500, np.arange(512)[::-1].copy()
HOLES = np.where(real(512, 512) > 1, np.nan, X)
CUBE = real(16, 32, 512)
MATRICES = real(256, 256) + 256 * np.eye(256)
Case = tuple[tuple[Any, ...], dict[str, Any]]


def along(*options: dict[str, Any], operands: Any = (X, WIDE, TURNED, SINGLE)) -> list[Case]:
    return [((x,), o) for x in operands for o in options]


def cases() -> dict[str, list[Case]]:
    """Operands of some megabytes for each operation."""
    axes = ({"axis": None}, {"axis": 0}, {"axis": -1})
    found: dict[str, list[Case]] = {name: [((X,) * n, {}), ((SINGLE,) * n, {})] for name, n in ARITIES.items()}
    found |= {name: [((WHOLE,) * ARITIES[name], {})] for name in ARITIES if name.startswith("bitwise")}
    found |= {name: along(*axes) for name in ("all", "any", "max", "min", "prod", "sum", "mean", "std", "var")}
    found |= {name: along(*axes) for name in ("count_nonzero", "argmax", "argmin")}
    found |= {name: along({"axis": 0}, {"axis": -1}) for name in ("cumulative_sum", "cumulative_prod", "diff")}
    found |= {name: along({"axis": 0}, {"axis": -1}) for name in ("sort", "argsort")}
    free = {"low": None, "high": None}
    plain, parts = {"axis": None}, {"q": (0.1, 0.5), "form": ((2,), "<f8"), "percent": False, "keepdims": False}
    several = tuple({"axis": axis} for axis in (None, 0, -1, (0, 1)))
    some = (HOLES, HOLES.astype("f4"), HOLES.T, HOLES * 1j, WHOLE)
    found |= {name: along(*axes, operands=some) for name in ("nansum", "nanprod", "nanmin", "nanmax", "nanmean")}
    found |= {name: along(*axes, operands=some) for name in ("nanvar", "nanstd")}
    found |= {name: along(plain, operands=some) for name in ("nanargmin", "nanargmax")}
    found["median"] = along(
        *several, *({"axis": axis} for axis in ((0, 2), (1, 2))), operands=(CUBE, CUBE.astype("f4"))
    )
    found["median"] += along(*several, operands=(X, WIDE, TURNED, SINGLE, HOLES, WHOLE))
    found["quantile"] = [((x,), {**o, **parts, "method": method}) for x in (X, TURNED, SINGLE, WHOLE)
                         for o in several for method in ("linear", "lower")]  # fmt: skip
    found["quantile"] += [((x, w), {**o, **parts, "method": "inverted_cdf"}) for o in several
                          for x, w in ((X, X), (SINGLE, WHOLE), (TURNED, X))]  # fmt: skip
    found["argpartition"] = along(*({"axis": axis, "kth": (3, 6)} for axis in (None, 0, -1)))
    found["argpartition"] += along({"axis": 0, "kth": 9}, operands=(LINE[::2], LINE[::-1]))
    found["topk"] = [((x,), {"axis": axis, "k": k, "largest": k < 8, "sorted": True})
                     for x in (X, WIDE, TURNED, SINGLE) for axis in (0, -1) for k in (5, 8)]  # fmt: skip
    found |= {name: [((MATRICES,), {})] for name in ("cholesky", "inv", "det", "cofactors", "pinv", "matrix_rank")}
    found |= {name: [((MATRICES,), {})] for name in ("eigvals", "eigvalsh", "svdvals", "eigh", "eig", "slogdet")}
    found |= {name: along({"k": 0}, operands=(X, SINGLE)) for name in ("tril", "triu")}
    lengths = ((None, "backward"), (None, "forward"), (N, "ortho"), (PRIME, "backward"), (3 * 5 * 7 * 2503, "forward"))
    for name in ("fft", "ifft", "rfft", "irfft"):
        lines = [LINE, LINE.astype("f4"), LINE.astype("i4")]
        lines += [LINE * 1j, (LINE * 1j).astype("c8")] if name != "rfft" else []
        found[name] = [((x,), {"n": n, "axis": -1, "norm": norm}) for x in lines for n, norm in lengths]
        found[name] += [((x,), {"n": n, "axis": axis, "norm": "ortho"})
                        for x in (X, TURNED) for n in (None, 1021) for axis in (0, -1)]  # fmt: skip
    several = ({"s": None, "axes": None}, {"s": (509, 509), "axes": (0, 1)}, {"s": (1024, 512), "axes": (1, 0)})
    found |= {name: along(*[{**o, "norm": norm} for o in several for norm in ("backward", "forward")],
                          operands=(X, SINGLE)) for name in ("fftn", "ifftn", "rfftn", "irfftn")}  # fmt: skip
    found |= signals()
    found |= network_rows_given(lambda *shape, dtype="f4": real(*shape, dtype=dtype), "f4", 100)
    found |= {
        "axpby": [((X, X, 0.5, 0.5), {}), ((TURNED, X, 0.5, 0.5), {})],
        "axpby_squared": [((X, X, 0.5, 0.5), {})],
        "rms_scaled": [((X, X, 1e-8), {})],
        "adam_step": [((X, X, X, np.asarray(3), 0.1, 0.1, 0.9, 0.99, 1e-8), {})],
        "choice_backward": [((X, X, 0.7), {}), ((X, TURNED, X), {})],
        "class_numbers": [((WHOLE,), {"classes": 1000, "ignore_index": -100})],
        "round": along({"decimals": 2}, operands=(X, SINGLE)),
        "clip": [((X, 0.6, 0.9), {}), ((X, X, X), {})],
        "astype": along({"dtype": np.dtype("f4")}, {"dtype": np.dtype("c16")}),
        "copy": along({}),
        "matmul": [((X, X), {}), ((X, TURNED), {}), ((SINGLE, SINGLE), {}), ((WHOLE[:100, :100],) * 2, {})],
        "vecdot": [((X, X), {"axis": axis}) for axis in (0, -1)],
        "tensordot": [((X, X), {"axes": 1}), ((X, TURNED), {"axes": 2})],
        "dot": [((X, X), {}), ((X, LINE[:512]), {})],
        "einsum": [((X, X), {"subscripts": text}) for text in ("ij,jk->ik", "ij,ij->ij", "ij,ij->")],
        "solve": [((MATRICES, MATRICES), {})],
        "matrix_power": [((MATRICES, ), {"n": n}) for n in (-2, 3)],
        "matrix_norm": [((MATRICES,), {"ord": o, "keepdims": False}) for o in ("fro", "nuc", 2)],
        "vector_norm": along(*[{"ord": o, "axis": None, "keepdims": False} for o in (1, 2, 3)]),
        "cross": [((real(N, 3), real(N, 3)), {"axis": -1})],
        "outer": [((LINE[:512], LINE[:512]), {})],
        "qr": along({"mode": "reduced"}, operands=(MATRICES,)),
        "svd": along({"full_matrices": True}, operands=(MATRICES,)),
        "concat": [((X, X), {"axis": axis}) for axis in (0, 1, None)] + [((X, SINGLE), {"axis": 0})],
        "stack": [((X, X), {"axis": axis}) for axis in (0, -1)],
        "repeat": along({"repeats": 3, "axis": None}, {"repeats": 3, "axis": 0}, {"repeats": 3, "axis": -1}),
        "repeat_each": [((X, np.arange(512) % 3), {"axis": axis}) for axis in (0, 1)],
        "tile": along({"repetitions": (2,)}, {"repetitions": (2, 2)}),
        "roll": along({"shift": 5, "axis": None}, {"shift": 5, "axis": 1}, {"shift": (1, 2), "axis": (0, 1)}),
        "reshape": along({"shape": (N,)}),
        "flip": along({"axis": None}),
        "getitem_advanced": [((X, ROWS), {"key": (TENSOR,)}), ((X, ROWS), {"key": (ALL, TENSOR)}),
                             ((X, X > 1), {"key": (TENSOR,)}), ((X, ROWS.astype("i4"), ROWS), {"key": (TENSOR,) * 2})],
        "setitem": [
            ((X, 1.0), {"key": (ALL, 1)}),
            *(((X, X, ROWS), {"key": (TENSOR,)}), ((X, 2.0, X > 1), {"key": (TENSOR,)})),
            *(((np.zeros(N), x, i), {"key": (TENSOR,)}) for x, i in ((X, WHOLE), (TURNED, WHOLE.T))),
        ],
        "last_written": [((i,), {"shape": shape, "key": (TENSOR,)}) for i, shape in ((WHOLE, (N,)), (ROWS, X.shape))],
        "take": [
            ((x, i), {"axis": a}) for x in (X, TURNED) for i in (ROWS, ROWS.astype("i4")) for a in (0, 1, None)
        ],
        "take_along_axis": [((X, WHOLE), {"axis": axis}) for axis in (0, 1)],
        "argwhere": along({}),
        "searchsorted": [((np.sort(LINE), x), {"side": "left"}) for x in (X, TURNED, SINGLE)],
        "unique_packed": [((X,), {"index": True, "inverse": True, "counts": True})],
        "bincount": [((np.arange(n, dtype=d) % 100, *w), {"minlength": 0})
                     for n, d in ((N, "i8"), (N, "u1"), (8 * N, "i4")) for w in ((), (np.ones(n, "f4"),))],
        "digitize": [((x, np.arange(9.0)), {"right": False}) for x in (X, TURNED, SINGLE)]
                    + [((X, np.arange(9.0)[::-1]), {"right": True})],
        "histogram": [((x, *edges, *w), {**free, **o, "density": False, "weighted": bool(w)})
                      for x in (X, TURNED, SINGLE, WHOLE, X > 1) for w in ((), (X,))
                      for edges, o in (((), {"bins": 500}), ((), {"bins": 500, "low": 0, "high": 1}),
                                       ((np.linspace(0, 2, 5000),), {"bins": None}))],
        "observation_weights": [((LINE, WHOLE.ravel()), {"names": ("aweights",) * 2})],
        "clip_parts": [((x,), {}) for x in (X * 1j, (X * 1j).T)],
        "unique_values": along({}, operands=(X, WHOLE)),
        "isin": [((X, LINE), {"invert": False}), ((WHOLE, WHOLE), {"invert": False})],
        "zeros": [((), {"shape": (N,), "dtype": np.dtype("f8")})],
        "ones": [((), {"shape": (N,), "dtype": np.dtype("f4")})],
        "full": [((2.5,), {"shape": (N,)})],
        "full_like": [((X, 2.5), {})],
        "arange": [((), {"start": 0, "stop": N, "step": 1, "dtype": dtype}) for dtype in (None, np.dtype("f4"))],
        "linspace": [((0, 1), {"num": N, "dtype": dtype}) for dtype in (None, np.dtype("f4"))],
        "eye": [((), {"n_rows": 512, "n_cols": 512, "k": 0, "dtype": np.dtype("f8")})],
        "scatter": [((X, ROWS), {"shape": X.shape, "key": (TENSOR,)}), ((X, WHOLE), {"shape": (N,), "key": (TENSOR,)}),
                    ((X,), {"shape": (512, 1024), "key": (ALL, Slice(None, None, 2))})],
        "scatter_along_axis": [((X, WHOLE), {"shape": X.shape, "axis": axis}) for axis in (0, 1)],
        "cumulative_prod_gradient": [((X, X), {"axis": axis}) for axis in (0, 1)],
        "cross_entropy": [((SINGLE, ROWS), {"reduction": "mean", "ignore_index": -100, "label_smoothing": s})
                          for s in (0.0, 0.1)],
    }  # fmt: skip
    return found


def signals() -> dict[str, list[Case]]:
    """Of sequences, padding and windows."""
    ends = [{"left": None, "right": None, "period": period} for period in (None, 0.3)]
    wide, one = ((3, 100), (50, 7)), {"pad_width": ((0, 0), (2000, 3))}
    modes: list[dict[str, Any]] = [
        {"mode": mode} for mode in ("edge", "wrap", "linear_ramp", "maximum", "median", "mean")
    ]
    modes += [{"mode": mode, "reflect_type": kind} for mode in ("reflect", "symmetric") for kind in ("even", "odd")]
    modes += [{"mode": "constant", "constant_values": 2}, {"mode": "median", "stat_length": 300}]
    return {
        "interp": [((x, known, values), end) for x in (X, TURNED, SINGLE, LINE[:5]) for end in ends
                   for known, values in ((LINE[:512], ROWS), (LINE, LINE), (LINE, LINE * 1j))],
        "gradient": [((x, h), {"axis": axis, "edge_order": order}) for x in (X, TURNED, SINGLE, WHOLE)
                     for h in (1.0, np.float64(2), LINE[:512], ROWS) for axis in (0, 1) for order in (1, 2)],
        "convolve": [((a, LINE[:n]), {"mode": mode}) for a in (LINE, LINE.astype("f4"), LINE[::2])
                     for n, mode in ((30, "full"), (500, "same"), (N - 5, "valid")) if n < len(a)],
        "pad": [((x,), {**width, **mode}) for x in (X, SINGLE, TURNED, WHOLE)
                for width in ({"pad_width": wide}, one) for mode in modes],
        "overlap_add": [((x,), {"axis": axis}) for x in (real(512, 512, 3), real(9, 9, N >> 5)) for axis in (0, 1)],
    }  # fmt: skip


def status(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def growth(name: str, operands: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int]:
    """By how much the process grows at most, and what is charged."""
    op = TABLE[name]
    found = plan(op, tuple([_form(a) for a in operands]), options)
    kernel = resolve(op, np)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is what there is now
    before = status("VmRSS")
    with np.errstate(all="ignore"):
        result = kernel(*operands, **options)
    peak = status("VmHWM")
    del result
    return peak - before, found.nbytes + found.workspace


def _form(operand: Any) -> Any:
    if not isinstance(operand, np.ndarray):
        return operand
    return meta(operand.shape, operand.dtype, operand.flags.c_contiguous)


def main(most: int) -> None:
    """Of so many cases of each operation."""
    compiled.finish()  # what is compiled in the background takes memory, too
    for name, some in cases().items():
        for operands, options in some[:most]:
            grown, charged = growth(name, operands, options)
            what = " ".join(f"{a.dtype}{a.shape}" if isinstance(a, np.ndarray) else str(a) for a in operands)
            print(json.dumps([name, grown, charged, f"{what} {options}"]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
