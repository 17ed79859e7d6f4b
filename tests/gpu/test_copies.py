"""What is put comes back: every dtype and layout, every size around that of a staging slot, other libraries' arrays."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.staging import SLOT_BYTES, SLOTS
from asyncsched.gpu_check import libraries
from asyncsched.gpu_check.entries import Report
from tests.devices.conftest import Exported

from .cases import DTYPES, values

pytestmark = pytest.mark.one_loop
LAYOUTS = {
    "c": lambda a: a,
    "fortran": lambda a: a.transpose(2, 1, 0),
    "turned": lambda a: a.transpose(1, 2, 0),
    "backwards": lambda a: a[::-1, :, ::-1],
    "gaps": lambda a: a[:, ::2, 1:],
    "broadcast": lambda a: np.broadcast_to(a[:1], (5, *a.shape[1:])),
    "no axis": lambda a: np.asarray(a[0, 0, 0]),
    "empty": lambda a: a[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_every_dtype_and_layout(s, layout):
    for dtype in (*DTYPES, "u2", "u4", "u8", "i1", "i2"):
        array = LAYOUTS[layout](values(4, 6, 5, dtype=dtype))
        x = await s.put(array)
        back = await x.numpy()
        assert back.dtype == array.dtype
        assert back.tobytes() == array.tobytes(), dtype
        if array.flags.c_contiguous or array.flags.f_contiguous:
            assert (await x).strides == array.strides


@pytest.mark.parametrize("layout", ["turned", "backwards", "gaps", "broadcast"])
async def test_views_of_the_device_are_read(s, layout):
    array = values(4, 6, 5, dtype="f8")
    x = await s.put(array)
    seen = {
        "turned": lambda: asc.permute_dims(x, (1, 2, 0)),
        "backwards": lambda: x[::-1, :, ::-1],
        "gaps": lambda: x[:, ::2, 1:],
        "broadcast": lambda: asc.broadcast_to(x[:1], (5, 6, 5)),
    }[layout]()
    assert (await seen.numpy()).tobytes() == LAYOUTS[layout](array).tobytes()


async def test_sizes_around_a_staging_slot(s):
    for nbytes in (1, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, (SLOTS + 1) * SLOT_BYTES + 3):
        array = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
        assert (await (await s.put(array)).numpy()).tobytes() == array.tobytes(), nbytes


async def test_the_source_may_be_reused_at_once_and_the_copy_is_ones_own(s):
    array = np.zeros(SLOT_BYTES // 4, np.float32)
    tensors = []
    for i in range(8):
        array.fill(i)
        tensors.append(await s.put(array))
    for i, tensor in enumerate(tensors):
        host = await tensor.numpy()
        assert host.min() == host.max() == i
        host.fill(-1)
        assert (await tensor.max().item()) == i


async def test_many_copies_at_a_time(card):
    async with asc.Scheduler("cuda", max_bytes="64 MiB") as s:

        async def there_and_back(i: int) -> None:
            array = values(300, 500, seed=i)
            assert (await ((await s.put(array)) + 0).numpy()).tobytes() == array.tobytes()

        await asyncio.gather(*[there_and_back(i) for i in range(card.pick(100, 20))])


async def test_arrays_of_cupy_enter_and_leave(s):
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)

    def make() -> object:
        with stream:
            return cupy.full((100, 100), 3, dtype=cupy.float32)

    x = await s.put(Exported(await asyncio.to_thread(make), stream))
    ours = cupy.from_dlpack(await (x * 2))
    assert (await s.call(lambda a: a.sum().item(), ours)) == 60_000


@pytest.fixture
def torch(card):
    if card.fake is not None:
        pytest.skip("PyTorch does not know the fake")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no CUDA device")
    return torch


async def test_tensors_of_pytorch_enter_and_leave(s, torch):
    theirs = torch.arange(6, device="cuda", dtype=torch.float32).reshape(2, 3)
    x = await s.put(theirs)
    assert (await x.numpy()).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.from_dlpack(await (x + 1)).sum().item() == 21
    layer = torch.nn.Linear(3, 2).cuda()
    y = await s.submit(layer, x, shape=(2, 2), dtype="float32")
    assert np.allclose(await y.numpy(), layer(theirs).detach().cpu().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("peers")
async def test_between_two_devices(card, tmp_path):
    await libraries.two_devices(Report(tmp_path, quick=True))
    async with asc.Scheduler(["cuda:0", "cuda:1"]) as s:
        x = await s.put(values(3, 4))
        with pytest.raises(ValueError, match="device"):
            x + (x * 1).to("cuda:1")
