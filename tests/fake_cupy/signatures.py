"""Where CuPy 14 differs from NumPy in names and keywords, as found by comparing both (14.2 with NumPy 2.4)."""

from __future__ import annotations

_MISSING = """
    asmatrix block bmat busday_count busday_offset datetime_as_string datetime_data einsum_path errstate frompyfunc
    fromregex geomspace get_include getbufsize geterr geterrcall histogram_bin_edges info insert is_busday isnat matvec
    nanpercentile nanquantile nested_iters polyder polydiv polyint setbufsize seterr seterrcall show_runtime spacing
    test unstack vecdot vecmat
"""
MISSING = frozenset(_MISSING.split())

# Universal functions without a loop for complex numbers, where NumPy's have one.
NOT_COMPLEX = frozenset({"logical_and", "logical_not", "logical_or", "logical_xor"})

UFUNC_KEYWORDS = frozenset({"out", "dtype", "casting"})

# Keywords that NumPy's function takes and CuPy's does not.
NOT_TAKEN = {
    name: frozenset(keywords.split())
    for name, keywords in {
        "all": "where",
        "amax": "initial where",
        "amin": "initial where",
        "any": "where",
        "arange": "device like",
        "argsort": "order stable",
        "array": "like ndmax",
        "asarray": "device like",
        "broadcast_to": "subok",
        "clip": "max min",
        "copy": "subok",
        "count_nonzero": "keepdims",
        "einsum": "optimize",
        "empty": "device like",
        "empty_like": "device",
        "eye": "device like",
        "full": "device like",
        "full_like": "device",
        "linspace": "device",
        "max": "initial where",
        "mean": "where",
        "min": "initial where",
        "ones": "device like",
        "ones_like": "device",
        "prod": "initial where",
        "reshape": "shape",
        "sort": "order stable",
        "std": "correction mean where",
        "sum": "initial where",
        "take": "mode",
        "unique": "sorted",
        "var": "correction mean where",
        "zeros": "device like",
        "zeros_like": "device",
    }.items()
}

# What gives an answer about shapes or dtypes, and so launches nothing.
ON_HOST = frozenset(
    {
        "can_cast",
        "promote_types",
        "result_type",
        "min_scalar_type",
        "ndim",
        "shape",
        "size",
        "iscomplexobj",
        "isrealobj",
    }
)
