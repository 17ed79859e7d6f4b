"""The README's examples run: each block of Python, where it stands."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.serving import Serving
from tests.waiting import settled

pytestmark = pytest.mark.usefixtures("may_block")
README = (Path(__file__).parents[1] / "README.md").read_text()
EXTRAS = Path(__file__).parents[1] / "pyproject.toml"


def blocks(heading: str) -> list[str]:
    """The blocks of Python under a heading; those before the first heading have none."""
    return [code for found, code in all_blocks() if found == heading]


def all_blocks() -> list[tuple[str, str]]:
    found, heading, code = [], "", None
    for line in README.splitlines():
        if code is None and line.startswith("#") and not line.startswith("# "):
            heading = line.lstrip("# ")
        if line == "```" and code is not None:
            found.append((heading, "\n".join(code)))
            code = None
        elif code is not None:
            code.append(line)
        elif line == "```python":
            code = []
    return found


async def run(code: str, names: dict[str, Any]) -> None:
    """Run a block that awaits, as a notebook's cell: its names stay."""
    compiled = compile(code, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if inspect.iscoroutine(waiting := eval(compiled, names)):
        await waiting


def test_every_block_is_run_below():
    assert Counter(heading for heading, _ in all_blocks()) == {
        "": 1,
        "How it works": 1,
        "Training": 1,
        "Checkpoints": 1,
        "Seeds": 1,
        "Servers": 1,
        "Seeing what it does": 1,
        "Bring your own framework": 1,
        "Testing": 3,
        "Notebooks": 1,
        "Ctrl-C": 1,
        "Beyond one machine": 2,  # the second in tests/cluster
    }


@pytest.mark.parametrize("heading", ["", "How it works"])
def test_whole_programs(heading):
    (code,) = blocks(heading)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    if not heading:
        said = re.findall(r"print\(.*\)  # (.*)", code)
        assert [line.replace("device=cuda:0", "device=cpu") for line in done.stdout.splitlines()] == said
        assert len(code.splitlines()) <= 15


@pytest.fixture
def names() -> dict[str, Any]:
    return {"asc": asc, "np": np, "nn": nn, "optim": optim, "Path": Path, "asyncio": asyncio}


async def test_training_checkpoints_and_seeds(s, names, tmp_path):
    rng = np.random.default_rng(0)
    dataset = [(rng.random(784, np.float32), i % 10) for i in range(256)]
    names |= {"s": s, "dataset": dataset, "decode": lambda item: item}
    (training,), (checkpoints,), (seeds,) = blocks("Training"), blocks("Checkpoints"), blocks("Seeds")
    quoted = re.compile(r'"(\w+\.safetensors)"')
    training, checkpoints = (quoted.sub(rf'"{tmp_path}/\1"', code) for code in (training, checkpoints))
    await run(training, names)
    trained = await names["model"].state_dict()["0.weight"].numpy()
    for _ in range(2):  # a first run saves, the second goes on from there
        await run(checkpoints, names)
    assert (await names["model"].state_dict()["0.weight"].numpy() == trained).all()
    await run(seeds, names)
    assert (await names["noise"].numpy() == np.random.default_rng(0).normal(size=(64, 784))).all()
    for name in ("model", "optimizer", "loss"):
        names.pop(name, None)


async def test_a_framework_of_ones_own(s, names):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = torch.nn.Linear(3, 2)
    before = model.weight.clone()

    async def batches():
        for _ in range(3):
            yield await s.put(np.ones((4, 3), np.float32)), await s.put(np.zeros(4, np.int64))

    names |= {"s": s, "torch": torch, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    names |= {"batches": batches(), "window": s.window(2), "losses": []}
    await run(blocks("Bring your own framework")[0], names)
    first, *_, last = await asc.gather(*names["losses"])
    assert last < first
    assert not torch.equal(model.weight, before)
    assert {name for name, _ in names["cost"]._known} == {"forward", "backward", "move"}


def test_beyond_one_machine(capsys):
    dask = pytest.importorskip("dask", reason="Dask is not installed")
    from asyncsched.cluster import compute

    with dask.config.set(scheduler="threads"):  # and what it was before at the end
        exec(blocks("Beyond one machine")[0], {})
        found = asc.cluster.statistics()
    compute._kept.replace(compute.DEFAULTS)
    assert found.peak_bytes <= found.max_bytes == 64 * 2**20
    assert capsys.readouterr().out.startswith("0.288")


async def test_a_server(names):
    class App:
        """What FastAPI has of this, where it is not installed."""

        def add_middleware(self, middleware: Any, **options: Any) -> None:
            self.serving = middleware(self.answer, drain_on_sigterm=False, **options)

        def post(self, path: str) -> Any:
            return lambda handler: setattr(self, "handler", handler)

        async def answer(self, scope: Any, receive: Any, send: Any) -> None:
            self.answered = await self.handler([1.0, 0.0, 0.0])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    app = App()
    names |= {"app": app, "W": np.eye(3, dtype=np.float32)[::-1]}
    await run(blocks("Servers")[0], names)
    assert isinstance(app.serving, Serving)

    async def receive() -> dict[str, Any]:
        if not asked:
            await asyncio.Event().wait()
        return asked.pop()

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200

    asked = [{"type": "http.request", "body": b""}]
    async with app.serving.open():
        await app.serving({"type": "http", "method": "POST", "path": "/predict", "headers": []}, receive, send)
    assert app.answered == {"class": 2}


def test_testing(tmp_path):
    pytest.importorskip("httpx", reason="asyncsched[test]")
    conftest, tests, client = blocks("Testing")
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_mine.py").write_text(
        "import asyncsched, asyncsched.testing, httpx, pytest\nimport numpy as np\n"
        "from asyncsched.serving import Serving\n"
        "async def app(scope, receive, send): pass\napp = Serving(app)\n"
        + f"{tests}\n\n{client}\n\n"
        + "async def test_client(client):\n    assert (await client.get('/readyz')).status_code == 200\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "error"]
    command += [
        "-p",
        "no:hypothesispytest",
        "--asyncio-mode",
        "auto",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
    ]
    there = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, check=False)
    assert "102 passed" in done.stdout, done.stdout


async def test_bring_your_own_framework(s, names):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = torch.nn.Linear(8, 3)
    before = model.weight.detach().clone()
    losses: list[Any] = []
    names |= {"s": s, "torch": torch, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    pipe = s.pipeline([(np.ones(8, np.float32), i % 3) for i in range(32)]).batch(8).to_device()
    async with pipe.open() as batches:
        await run(
            blocks("Bring your own framework")[0], names | {"batches": batches, "window": s.window(2), "losses": losses}
        )
    assert [type(await loss) for loss in losses] == [float] * 4
    assert not torch.equal(model.weight, before)


async def test_a_notebook(names):
    await run(blocks("Notebooks")[0].replace("asc.open(", 'asc.open("cpu", '), names)
    assert await (names["x"] + 1).sum().item() == 6.0
    del names["x"]
    await names["s"].aclose()


async def test_seeing_what_it_does(s, names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(asc.observe, "explain_on_signal", lambda: None)
    await run(blocks("Seeing what it does")[0], names | {"s": s, "y": await settled(asc.ones(3) + 1)})
    assert capsys.readouterr().out.startswith("done: ")
    assert (tmp_path / "y.svg").read_text().startswith("<svg ")


async def test_interrupted_and_saved(names, tmp_path):
    began = asyncio.Event()

    async def main() -> None:
        async with asc.Scheduler("cpu"):
            model = nn.Linear(3, 2, rng=0)

            async def train() -> None:
                began.set()
                await asyncio.Event().wait()

            names.update(path=tmp_path / "run.safetensors", model=model, train=train)
            await run(blocks("Ctrl-C")[0], names)

    task = asyncio.ensure_future(main())
    await began.wait()
    task.cancel()  # which is what asyncio does at the first Ctrl-C
    with pytest.raises(asyncio.CancelledError):
        await task
    names.clear()
    async with asc.Scheduler("cpu"):
        assert (await asc.load(tmp_path / "run.safetensors"))["model"]["weight"].shape == (2, 3)


def test_the_table_of_extras_is_whole():
    import tomllib

    extras = tomllib.loads(EXTRAS.read_text())["project"]["optional-dependencies"]
    table = README.partition("| extra | brings |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    assert named == set(extras)


def test_the_table_of_demos_is_whole():
    demos = Path(__file__).parents[1] / "demos"
    table = README.partition("| demo | what it shows |")[2].partition("\n\n")[0]
    named = {re.findall(r"`(.*?)`", line)[0] for line in table.splitlines()[2:]}
    programs = {path.name for path in demos.glob("*.py") if "__main__" in path.read_text()}
    assert named == programs | {path.relative_to(demos).as_posix() for path in demos.rglob("*.ipynb")}
