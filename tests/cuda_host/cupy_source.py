"""CuPy's source distribution, and C++ from some of its Cython modules. Run in the environment: see `main`."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

SHA256 = {"14.2.0": "cfed725e612178cfbdbf62f4a3a598b60edecbbca718c0d4580c21a16ae4a62c"}
# As in CuPy's own install/cupy_builder.
SETTINGS = {
    "CUPY_USE_CUDA_PYTHON": False,
    "CUPY_CUFFT_STATIC": False,
    "CUPY_CUDA_VERSION": 12090,
    "CUPY_HIP_VERSION": 0,
}
DIRECTIVES = {
    "embedsignature": True,
    "c_api_binop_methods": True,
    "binding": False,
    "warn.deprecated.IF": False,
    "freethreading_compatible": True,
}


def download(version: str, folder: Path) -> None:
    """Unpack the source there. Not by `pip download`, which would build its metadata, for which it wants CUDA."""
    page = f"{_index()}/cupy/"
    asked = urllib.request.Request(page, headers={"Accept": "text/html"})
    with urllib.request.urlopen(asked) as answer:
        found = re.search(rf'href="([^"#]*cupy-{re.escape(version)}\.tar\.gz)', answer.read().decode())
        page = answer.geturl()
    if found is None:
        raise SystemExit(f"{page} has no cupy-{version}.tar.gz")
    archive = folder.with_suffix(".tar.gz")
    urllib.request.urlretrieve(urljoin(page, found[1]), archive)
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256[version]:
        raise SystemExit(f"{archive} is not the cupy-{version}.tar.gz that is expected")
    with tarfile.open(archive) as files:
        files.extractall(folder.parent, filter="data")
    (folder.parent / f"cupy-{version}").rename(folder)


def _index() -> str:
    """The package index that pip asks."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return (asked.stdout.strip() or "https://pypi.org/simple").rstrip("/")


def cythonize(folder: Path, modules: list[str]) -> None:
    import Cython
    from Cython.Compiler import Options
    from Cython.Compiler.Main import CompilationOptions, compile

    options = CompilationOptions(
        Options.default_options,
        cplus=True,
        language_level=3,
        compiler_directives=DIRECTIVES,
        compile_time_env=SETTINGS | {"CUPY_CYTHON_VERSION": Cython.__version__},
        include_path=[str(folder)],
    )
    for module in modules:
        compile([str(folder / module)], options)


def main(version: str, folder: Path, *modules: str) -> None:
    if not folder.exists():
        download(version, folder)
    cythonize(folder, [module for module in modules if not (folder / module).with_suffix(".cpp").exists()])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
