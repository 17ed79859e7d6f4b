"""Checkpoints that were altered, cut off or written elsewhere: what is wrong is named."""

from __future__ import annotations

import numpy as np
import pytest
from anyio import to_thread

import asyncsched as asc

from .equal import same

pytestmark = pytest.mark.one_loop

pytest.importorskip("safetensors", reason="safetensors is not installed")


async def test_a_flipped_bit_is_told_wherever_it_is(s, path):
    await asc.save(path, {"w": np.arange(3, dtype=np.float16), "step": 10, "empty": np.zeros((0, 2))})
    whole = await to_thread.run_sync(path.read_bytes)
    for bit in range(0, 8 * len(whole), 3):  # in each byte two or three
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        await to_thread.run_sync(path.write_bytes, altered)
        with pytest.raises(asc.CheckpointDamaged, match="is damaged, or no checkpoint: .* go back to an earlier one"):
            await asc.load(path)


async def test_a_file_that_was_cut_off_or_is_another_is_told(s, path):
    await asc.save(path, {"a": asc.ones(100), "b": asc.ones(100)})
    whole = await to_thread.run_sync(path.read_bytes)
    for altered in (whole[:100], whole[:-8], whole[:3], b"", b"PK" + whole, bytes(1000), whole + b"more"):
        await to_thread.run_sync(path.write_bytes, altered)
        with pytest.raises(asc.CheckpointDamaged):
            await asc.load(path)


@pytest.mark.parametrize(
    "metadata",
    [
        {"asyncsched": "no JSON"},
        {"asyncsched": "[" * 100_000},
        {"asyncsched": "[" * 5_000 + "]" * 5_000},
        {"asyncsched": "1" * 5_000},
        {"asyncsched": "[]"},
        {"asyncsched": '{"/": "tensor"}'},
        {"asyncsched": '{"b": {"/": "tensor"}}'},
        {"asyncsched": '{"step": 3}'},
        {"asyncsched.state": '{"a": {"/": "tensor"}}'},
        {"asyncsched.crc32": "{}"},
        {"asyncsched.state": "{}", "asyncsched.crc32": "3"},
        {"asyncsched.state": "{}", "asyncsched.crc32": "[[1]]"},
    ],
    ids=str,
)
async def test_a_layout_that_does_not_fit_is_told(s, path, metadata):
    from safetensors.numpy import save_file

    await to_thread.run_sync(save_file, {"a": np.ones(3)}, path, metadata)
    with pytest.raises(asc.CheckpointDamaged):
        await asc.load(path)


async def test_a_file_of_a_version_without_checksums_loads(s, path):
    from safetensors.numpy import save_file

    layout = '{"model": {"w": {"/": "tensor"}}, "seed": {"/": "array"}, "step": [3, null]}'
    arrays = {"model/w": np.ones(3), "seed": np.arange(2)}
    await to_thread.run_sync(save_file, arrays, path, {"asyncsched": layout})
    back = await asc.load(path)
    assert same(await back["model"]["w"], np.ones(3))
    assert same(back["seed"], np.arange(2))
    assert back["step"] == [3, None]


async def test_a_damaged_tensor_is_named(s, path):
    await asc.save(path, {"model": {"weight": asc.ones(100)}})
    whole = await to_thread.run_sync(path.read_bytes)
    await to_thread.run_sync(path.write_bytes, whole[:-1] + b"\0")
    with pytest.raises(asc.CheckpointDamaged, match="'model/weight' is not what was written"):
        await asc.load(path)
