"""Saving and loading: what comes back, what a kill leaves, and training that goes on as if it had not stopped."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading

import numpy as np
import pytest
from anyio import to_thread

import asyncsched as asc
from asyncsched import nn, optim
from tests.fake_cupy import fake_cupy

from .equal import same

pytestmark = pytest.mark.one_loop

pytest.importorskip("safetensors", reason="safetensors is not installed")


async def test_everything_comes_back(path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    async with asc.Scheduler("cpu") as s:
        state = {
            "model": {"0.weight": await s.put(array), "turned": (await s.put(array)).mT, "number": asc.full((), 2.5)},
            "optimizer": [{"step": 3, "mean": await s.put(array)}, {}],
            "host": {"key": np.arange(4, dtype=np.uint32), "scalar": np.float64(0.1)},
            "rng": np.random.default_rng(0).bit_generator.state,
            "plain": [1, 0.1, "text", None, True, {"deep": []}],
            "empty": {},
        }
        await asc.save(path, state)
        back = await asc.load(path)
        assert back["plain"] == state["plain"]
        assert back["rng"] == state["rng"]
        assert back["empty"] == {}
        assert back["optimizer"][0]["step"] == 3
        assert back["optimizer"][1] == {}
        assert same(back["host"]["key"], state["host"]["key"])
        assert same(back["host"]["scalar"], 0.1)
        assert isinstance(back["host"]["key"], np.ndarray)
        assert same(await back["model"]["0.weight"], array)
        assert same(await back["model"]["turned"], array.T)
        assert same(await back["model"]["number"], 2.5)
        assert same(await back["optimizer"][0]["mean"], array)
    assert await to_thread.run_sync(os.listdir, path.parent) == [path.name]


async def test_what_is_saved_is_of_the_moment_of_the_call(s, path):
    x, host = await s.put(np.zeros(2000)), np.zeros(2)
    saving = asyncio.ensure_future(asc.save(path, {"x": x, "host": host}))
    await asyncio.sleep(0)
    x[:] = 1.0
    host[:] = 1
    await saving
    back = await asc.load(path)
    assert not (await back["x"]).any()
    assert not back["host"].any()


async def test_a_plain_file_from_elsewhere_loads(path):
    from safetensors.numpy import load_file, save_file

    weights = {"a/b.weight": np.ones((2, 3), np.float16), "bias": np.arange(3)}
    await to_thread.run_sync(save_file, weights, path)
    async with asc.Scheduler("cpu") as s:
        back = await asc.load(path)
        assert set(back) == set(weights)
        for name, array in weights.items():
            assert same(await back[name], array)
        await asc.save(path, {"weight": await s.put(weights["bias"])})
    stored = await to_thread.run_sync(load_file, path)
    assert {name: array.tolist() for name, array in stored.items()} == {"weight": [0, 1, 2]}


async def test_a_module_is_no_state_and_no_path(s, path):
    model = asc.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"the path first, not Linear: `await asc.save\(path, state\)`"):
        await asc.save(model, path)
    with pytest.raises(TypeError, match=r"takes a state, which is a dict, not Linear: .*state_dict\(\)"):
        await asc.save(path, model)
    with pytest.raises(TypeError, match=r"model: a state .* not Linear"):
        await asc.save(path, {"model": model})
    with pytest.raises(TypeError, match=r"^a: a state holds .* not object"):
        await asc.save(path, {"a": object()})


async def test_what_is_no_dict_is_refused_and_the_file_stays(s, path):
    """Such files were written, and could not be loaded."""
    x = await s.put(np.arange(3))
    await asc.save(path, {"x": x})
    for state in (x, [x], (x, 1), [], np.arange(3), 3, None, object()):
        with pytest.raises(TypeError, match=r"a dict, not \w+: `await asc.save\(path, {\"it\": it}\)`"):
            await asc.save(path, state)
    assert (await (await asc.load(path))["x"]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {1: 2}}, "a: the keys of a state are text"),
        ({"a/b": 2}, "^the keys of a state are text without a slash"),
        ({"a": {"": 2}}, "a: the keys .* not ''"),
        ({"__metadata__": np.zeros(2)}, "not '__metadata__'"),
        ({"a": [{"b": object()}]}, "a/0/b: a state holds tensors"),
        ({"a": {"b": np.zeros(2, complex)}}, "a/b: the format has no dtype complex128"),
        ({"a": np.array(["x"])}, "a: the format has no dtype"),
        ({"a": {"\ud800": np.zeros(2)}}, r"a/\\ud800': 'utf-8' codec"),
    ],
)
async def test_what_cannot_be_stored_is_named_and_the_old_file_stays(s, path, state, message):
    await asc.save(path, {"old": 1})
    with pytest.raises(TypeError, match=message):
        await asc.save(path, state)
    assert await asc.load(path) == {"old": 1}


async def test_a_failed_tensor_fails_the_save_and_the_old_file_stays(s, path):
    await asc.save(path, {"old": 1})

    def fail() -> np.ndarray:
        raise ArithmeticError("no result")

    with pytest.raises(ArithmeticError):
        await asc.save(path, {"new": await s.submit(fail, shape=(2,), dtype=float)})
    assert await asc.load(path) == {"old": 1}


async def test_an_error_while_writing_leaves_nothing_behind(path, monkeypatch):
    async with asc.Scheduler("cpu"):
        await asc.save(path, {"old": 1})
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            await asc.save(path, {"new": 1})
        assert await asc.load(path) == {"old": 1}
    assert await to_thread.run_sync(os.listdir, path.parent) == [path.name]


async def test_writing_is_not_done_on_the_loops_thread(path, monkeypatch):
    threads = []
    replace = os.replace

    def noted(*args):
        threads.append(threading.current_thread())
        replace(*args)

    monkeypatch.setattr(os, "replace", noted)
    async with asc.Scheduler("cpu"):
        await asc.save(path, {})
    assert threads
    assert threading.main_thread() not in threads
    assert all(thread.daemon for thread in threads)  # a disk that hangs keeps no program from ending


async def test_cancelling_leaves_a_whole_file(s, path, monkeypatch):
    reached, go_on, finished = threading.Event(), threading.Event(), threading.Event()
    replace = os.replace

    def held(*args):
        reached.set()
        go_on.wait()
        replace(*args)
        finished.set()

    await asc.save(path, {"version": 1})
    monkeypatch.setattr(os, "replace", held)
    saving = asyncio.ensure_future(asc.save(path, {"version": 2}))
    await to_thread.run_sync(reached.wait)
    saving.cancel()
    await asyncio.sleep(0)
    assert await asc.load(path) == {"version": 1}
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await saving
    await to_thread.run_sync(finished.wait)
    assert await asc.load(path) == {"version": 2}


async def test_a_link_stays_a_link(path):
    other = path.with_name("other")
    await to_thread.run_sync(other.symlink_to, path)
    async with asc.Scheduler("cpu"):
        await asc.save(other, {"a": 1})
        assert await asc.load(path) == {"a": 1}
    assert await to_thread.run_sync(other.is_symlink)


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
async def test_what_is_no_regular_file_stays_what_it_is(s, path, kind):
    """Nobody writes to this pipe: whoever opens it to read waits. The device is a null device of this test's own."""
    link = path.with_name("link")
    try:
        await to_thread.run_sync(os.mknod, path, 0o600 | kind, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    await to_thread.run_sync(link.symlink_to, path)
    for given in (path, link):
        with pytest.raises(OSError, match="save takes the path of a file, and this is a device, a pipe or a socket"):
            await asc.save(given, {"a": 1})
        with pytest.raises(OSError, match="load takes the path of a file"):
            await asc.load(given)
    assert stat.S_IFMT((await to_thread.run_sync(os.lstat, path)).st_mode) == kind
    assert sorted(await to_thread.run_sync(os.listdir, path.parent)) == sorted([link.name, path.name])


async def test_a_path_that_cannot_tell_its_name_raises_what_it_raises(s):
    class Nameless:
        def __fspath__(self) -> str:
            raise LookupError

        __repr__ = __fspath__

    with pytest.raises(LookupError):
        await asc.save(Nameless(), {"a": 1})
    with pytest.raises(LookupError):
        await asc.load(Nameless())


async def test_a_missing_file_is_an_error_of_its_own(s, path):
    with pytest.raises(FileNotFoundError):
        await asc.load(path)


async def test_a_path_in_bytes_is_one_for_both(s, path):
    await asc.save(os.fsencode(path), {"epoch": 3})
    assert await asc.load(os.fsencode(path)) == {"epoch": 3}


async def test_a_folder_is_no_file(s, path):
    with pytest.raises(IsADirectoryError, match=r"load reads one file, and this is a folder: .*"):
        await asc.load(path.parent)


async def test_save_writes_nothing_beside_a_folder_and_nowhere_without_a_path(s, path):
    folder = path.parent / "folder"
    await to_thread.run_sync(folder.mkdir)
    for given in (folder, f"{folder}/", f"{folder}/."):
        with pytest.raises(IsADirectoryError, match=r"save writes one file, and this is a folder: .*"):
            await asc.save(given, {"a": 1})
    for given in ("", b""):
        with pytest.raises(ValueError, match="save takes the path of a file, and this is empty"):
            await asc.save(given, {"a": 1})
    assert await to_thread.run_sync(os.listdir, path.parent) == [folder.name]
    assert await to_thread.run_sync(os.listdir, folder) == []


async def test_a_path_in_bytes(s, path):
    await asc.save(os.fsencode(path), {"a": 1})
    assert await asc.load(path) == {"a": 1}


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFLNK])
async def test_what_no_save_has_left_is_left_alone(s, path, kind):
    """Nobody writes to this pipe: whoever opens it to read waits."""
    beside = path.with_name(f".{path.name}.{'0' * 16}.tmp")
    if kind == stat.S_IFLNK:
        await to_thread.run_sync(beside.symlink_to, path.parent)
    else:
        await to_thread.run_sync(os.mknod, beside, 0o600 | kind)
    await asc.save(path, {"a": 1})
    assert await asc.load(path) == {"a": 1}
    assert sorted(await to_thread.run_sync(os.listdir, path.parent)) == sorted([beside.name, path.name])


async def test_big_endian_arrays_come_back_as_the_format_has_them(s, path):
    await asc.save(path, {"a": np.arange(3, dtype=">i4"), "b": np.array(2.5, ">f8")})
    back = await asc.load(path)
    assert same(back["a"], np.arange(3, dtype="<i4"))
    assert same(back["b"], np.array(2.5))


def around_itself() -> dict:
    state: dict = {"a": [1, {}]}
    state["a"][1]["b"] = state["a"]
    return state


def nested(levels: int) -> dict:
    state: dict = {}
    for _ in range(levels - 1):
        state = {"a": state}
    return state


async def test_a_state_that_contains_itself_or_is_nested_too_deep_is_refused_by_path(s, path):
    with pytest.raises(ValueError, match=r"^a/1/b: the state contains itself"):
        await asc.save(path, around_itself())
    with pytest.raises(ValueError, match="nested at most 100 levels"):
        await asc.save(path, nested(101))
    shared = [1, 2]
    await asc.save(path, {"deep": nested(99), "twice": [shared, shared]})
    assert await asc.load(path) == {"deep": nested(99), "twice": [shared, shared]}


async def test_loading_waits_for_room(path):
    async with asc.Scheduler("cpu") as s:
        await asc.save(path, {"a": asc.ones(1000), "b": asc.ones(1000)})
    async with asc.Scheduler("cpu", max_bytes=20_000) as s:
        held = await s.put(np.zeros(1000))
        loading = asyncio.ensure_future(asc.load(path))
        while s.statistics().tasks_pending == 0:
            await asyncio.sleep(0)
        del held
        assert set(await loading) == {"a", "b"}


class Training:
    """A small network with dropout, trained on batches drawn at random."""

    def __init__(self, optimizer: str) -> None:
        layers = [
            nn.Linear(20, 50, rng=1),
            nn.BatchNorm1d(50),
            nn.GELU(),
            nn.Dropout(0.2, rng=2),
            nn.Linear(50, 4, rng=3),
        ]
        self.model = nn.Sequential(*layers)
        options = {"momentum": 0.9} if optimizer == "SGD" else {}
        self.optimizer = getattr(optim, optimizer)(self.model.parameters(), lr=0.01, **options)
        self.rng = np.random.default_rng(4)
        self.step = 0

    async def run(self, s: asc.Scheduler, steps: int) -> None:
        for _ in range(steps):
            x = await s.put(self.rng.standard_normal((32, 20)).astype(np.float32))
            loss = nn.cross_entropy(self.model(x), await s.put(self.rng.integers(0, 4, 32)))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1

    def state(self) -> dict[str, object]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng.bit_generator.state,
            "step": self.step,
        }

    def go_on_from(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
        self.step = state["step"]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "RMSprop"])
async def test_a_resumed_run_gives_the_weights_of_an_unbroken_one_bit_for_bit(path, optimizer):
    async with asc.Scheduler("cpu") as s:
        unbroken = Training(optimizer)
        await unbroken.run(s, 20)
        await asc.save(path, unbroken.state())
        await unbroken.run(s, 20)
        expected = [await p.numpy() for p in unbroken.model.parameters()]
    async with asc.Scheduler("cpu") as s:
        resumed = Training(optimizer)
        await resumed.run(s, 3)  # what was drawn and trained here must not show
        resumed.go_on_from(await asc.load(path))
        await resumed.run(s, 20)
        assert resumed.step == 40
        got = [await p.numpy() for p in resumed.model.parameters()]
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))


async def test_others_may_read_what_they_may_read_of_other_files(s, path):
    """What is new is as any new file; what is replaced keeps its mode."""

    def modes() -> list[int]:
        (path.parent / "new").touch()
        return [file.stat().st_mode for file in (path, path.parent / "new")]

    await asc.save(path, {"a": 1})
    mode, new = await to_thread.run_sync(modes)
    assert mode == new
    await to_thread.run_sync(path.chmod, 0o440)
    await asc.save(path, {"a": 2})
    assert (await to_thread.run_sync(path.stat)).st_mode & 0o777 == 0o440


async def test_tensors_of_a_card_are_copied_out_and_come_back_there(path):
    with fake_cupy(3):
        async with asc.Scheduler("cuda") as s:
            x = await s.put(np.arange(2000.0))
            saving = asyncio.ensure_future(asc.save(path, {"double": x * 2, "x": x}))
            await asyncio.sleep(0)
            x[:] = 0.0
            await saving
            back = await asc.load(path)
            assert back["x"].device is x.device
            assert same(await back["x"].numpy(), np.arange(2000.0))
            assert same(await back["double"].numpy(), np.arange(2000.0) * 2)
            del back, x


def of_dtype(path, dtype, itemsize):
    """A file as PyTorch writes it, of three elements."""
    header = json.dumps({"weight": {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * itemsize]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(3 * itemsize))


async def loads_no_dtype_of_others(path):
    for dtype, itemsize in [("BF16", 2), ("F8_E4M3", 1), ("F8_E5M2", 1)]:
        await to_thread.run_sync(of_dtype, path, dtype, itemsize)
        with pytest.raises(TypeError, match="weight: NumPy has no such dtype: store it in float32"):
            await asc.load(path)


async def test_a_dtype_that_numpy_has_not_is_named(s, path):
    await loads_no_dtype_of_others(path)


async def test_a_dtype_that_a_package_brings_is_not_numpys(s, path):
    pytest.importorskip("jax", reason="JAX is not installed, which brings ml_dtypes")
    import ml_dtypes

    await loads_no_dtype_of_others(path)
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):  # the second says that its kind is "f"
        with pytest.raises(TypeError, match="is not supported: a tensor has bool, integers"):
            await s.put(np.ones(3, dtype))
        with pytest.raises(TypeError, match="a: the format has no dtype"):
            await asc.save(path, {"a": np.ones(3, dtype)})
