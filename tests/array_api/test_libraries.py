"""scikit-learn's and SciPy's functions take these arrays, where they are installed, and give arrays of the same class.

Both want to be told so before they are imported, and bring a BLAS of their own: hence in processes of their own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

SCIKIT_LEARN = """
import numpy as np, sklearn
from sklearn.metrics import mean_squared_error, r2_score
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import MinMaxScaler
from asyncsched import array_api as xp
a = np.random.default_rng(0).standard_normal((20, 3))
x = xp.asarray(a)
expected = [MinMaxScaler().fit_transform(a), cosine_similarity(a), mean_squared_error(a[:, 0], a[:, 1])]
expected.append(r2_score(a[:, 0], a[:, 1]))
with sklearn.config_context(array_api_dispatch=True):
    found = [MinMaxScaler().fit_transform(x), cosine_similarity(x), mean_squared_error(x[:, 0], x[:, 1])]
    found.append(r2_score(x[:, 0], x[:, 1]))
assert [type(f) for f in found[:2]] == [xp.Array] * 2, found
for got, like in zip(found, expected):
    assert np.allclose(np.asarray(got), like)
for kind in ("full", "tied", "diag", "spherical"):  # their covariances are written to through views
    options = {"covariance_type": kind, "reg_covar": 0.5, "init_params": "random", "random_state": 0}
    like = GaussianMixture(2, **options).fit(a)
    with sklearn.config_context(array_api_dispatch=True):
        got = GaussianMixture(2, **options).fit(x)
    assert np.allclose(np.asarray(got.covariances_), like.covariances_), kind
    assert np.allclose(np.asarray(got.means_), like.means_), kind
print("scikit-learn")
"""

SCIPY = """
import numpy as np
from scipy.cluster.vq import kmeans
from scipy.integrate import trapezoid
from scipy.signal import detrend
from scipy.special import expit, logsumexp
from scipy.stats import gmean, zscore
from asyncsched import array_api as xp
a = np.random.default_rng(0).uniform(1, 2, (20, 3))
x = xp.asarray(a)
means = lambda x: kmeans(x, 3, rng=0)[0]
along = [lambda x: logsumexp(x, axis=0), lambda x: gmean(x, axis=1), lambda x: trapezoid(x, axis=0)]
for fn in (expit, zscore, means, *along):
    got, like = fn(x), fn(a)
    assert type(got) is xp.Array, (fn, type(got))
    assert np.allclose(np.asarray(got), like), fn
print("SciPy")
"""


@pytest.mark.parametrize(("library", "program"), [("sklearn", SCIKIT_LEARN), ("scipy", SCIPY)])
def test_functions_of_libraries_take_these_arrays(library, program):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
