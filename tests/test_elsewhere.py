"""What runs on systems that are not Linux: there what they lack is taken away. See `tests.elsewhere`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.thorough import usually

PROGRAMS = """\
every_module
operations_and_calls
memory_and_processors
pipelines
saved_and_loaded
served_and_drained
traced_and_explained
a_stand_in_for_a_card
blocking_arrays
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what others lack is there on Linux alone")
@pytest.mark.parametrize("system", usually(["windows"], ["macos", "windows"]))  # which lacks more
def test_everything_runs_without_the_features_of_linux(system: str) -> None:
    command = [sys.executable, "-W", "ignore", "-X", "warn_default_encoding", "-m", "tests.elsewhere", system]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout) == (0, PROGRAMS), done.stderr
