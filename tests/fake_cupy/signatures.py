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

# Keywords that NumPy's functions take and CuPy's do not.
_NOT_TAKEN = {
    "correction mean where": "std var",
    "device": "empty_like full_like linspace ones_like zeros_like",
    "device like": "arange asarray empty eye full ones zeros",
    "initial where": "amax amin max min prod sum",
    "keepdims": "count_nonzero",
    "like ndmax": "array",
    "max min": "clip",
    "mode": "take",
    "optimize": "einsum",
    "order stable": "argsort sort",
    "shape": "reshape",
    "sorted": "unique",
    "subok": "broadcast_to copy",
    "where": "all any mean",
}
NOT_TAKEN = {name: frozenset(words.split()) for words, names in _NOT_TAKEN.items() for name in names.split()}

# What gives an answer about shapes or dtypes, and so launches nothing.
_ON_HOST = "can_cast promote_types result_type min_scalar_type ndim shape size iscomplexobj isrealobj"
ON_HOST = frozenset(_ON_HOST.split())
