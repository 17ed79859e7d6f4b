"""PyTorch modules as tasks: what they are given stays as it was, and what they give is an array of its own."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

pytestmark = pytest.mark.one_loop
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


def module(torch: Any, function: Any) -> Any:
    """A module that calls a function."""
    made = torch.nn.Module()
    made.forward = function
    return made


async def test_views_of_any_strides_are_taken(s: asc.Scheduler, torch: Any) -> None:
    linear = torch.nn.Linear(4, 2)
    x = await s.put(ROWS)
    for view, expected in [
        (x[::-1, ::-1], ROWS[::-1, ::-1]),
        (x[:0, ::-1], ROWS[:0, ::-1]),
        (asc.permute_dims(x, (1, 0))[:, :1] + x[:1], ROWS.T[:, :1] + ROWS[:1]),
        (asc.broadcast_to(x[1], (5, 4)), np.broadcast_to(ROWS[1], (5, 4))),
    ]:
        found = await s.call(linear, view)
        assert np.allclose(found, linear(torch.tensor(expected.copy())).detach().numpy(), rtol=1e-6)


async def test_a_mask_or_a_unit_is_not_dropped(s: asc.Scheduler, torch: Any) -> None:
    class Quantity(np.ndarray[Any, Any]):
        unit = "m"

    for array, what in [(np.ma.masked_less(ROWS, 5), "mask"), (ROWS.view(Quantity), "unit")]:
        for call in (lambda x: s.call(torch.nn.Identity(), x), lambda x: s.call(partial(torch.nn.Identity(), x))):
            with pytest.raises(TypeError, match=f"a tensor has no {what}: give"):
                await call([array])


@pytest.mark.parametrize("nested", [False, True])
async def test_a_module_may_not_change_its_input(s: asc.Scheduler, torch: Any, nested: bool) -> None:
    x = await s.put(ROWS - 5)
    relu = module(torch, lambda given: torch.relu_(given["x"][0] if nested else given))
    with pytest.raises(ValueError, match="changed its input in place.* inplace=False"):
        await s.call(relu, {"x": [x]} if nested else x)
    assert (await s.call(torch.nn.ReLU(), x)).min() == 0


async def test_a_result_in_the_memory_of_an_input_is_a_copy(s: asc.Scheduler, torch: Any) -> None:
    x = await s.put(ROWS)
    for same in (
        torch.nn.Identity(),
        torch.nn.Flatten(),
        module(torch, lambda x: x[1:]),
        torch.nn.Dropout().eval(),
        module(torch, lambda x: x.numpy()),
        module(torch, lambda x: x.numpy()[::-1]),
        module(torch, lambda x: torch.from_numpy(x.numpy()[1:])),
    ):
        found = await s.call(same, x)
        found += 1
        del found
        assert np.array_equal(await x.numpy(), ROWS)
    assert s.statistics().bytes_retained == ROWS.nbytes


async def test_what_numpy_has_no_array_for_is_told(s: asc.Scheduler, torch: Any) -> None:
    x = await s.put(ROWS)
    for wrong, match in [
        (lambda x: x.bfloat16(), "dtype torch.bfloat16.* cannot become an array"),
        (lambda x: [x.to("meta")], "device meta cannot become an array"),
        (lambda x: x.to_sparse(), "layout torch.sparse_coo.* cannot become an array"),
    ]:
        with pytest.raises(TypeError, match=match):
            await s.call(module(torch, wrong), x)
    conjugated = await s.call(module(torch, lambda x: torch.complex(x, x).conj()), x)
    assert np.array_equal(conjugated, ROWS - 1j * ROWS)


async def test_keywords_reach_a_module_as_tensors(s: asc.Scheduler, torch: Any) -> None:
    """By `functools.partial`, as the error for a keyword says."""
    scaled = module(torch, lambda x, by, *, plus: torch.add(x * by, plus["now"]))
    found = await s.call(partial(scaled, plus={"now": ROWS}), await s.put(ROWS), 3)
    assert type(found) is np.ndarray
    assert np.array_equal(found, ROWS * 4)
    with pytest.raises(ValueError, match="changed its input in place"):
        await s.call(partial(module(torch, lambda x: x.add_(1)), ROWS.copy()))


async def test_named_results_keep_their_names(s: asc.Scheduler, torch: Any) -> None:
    x = await s.put(ROWS)
    found = await s.call(module(torch, lambda x: x.max(1)), x)
    assert np.array_equal(found.values, ROWS.max(1))
    assert np.array_equal(found.indices, ROWS.argmax(1))
    rnn = torch.nn.utils.rnn
    packed = await s.call(module(torch, lambda x: rnn.pack_sequence([x[0], x[1, :2]])), x)
    assert np.array_equal(packed.data, [0, 4, 1, 5, 2, 3])
    assert packed.batch_sizes.tolist() == [2, 2, 1, 1]


async def test_a_part_of_a_larger_tensor_does_not_keep_the_whole(s: asc.Scheduler, torch: Any) -> None:
    """An array of it would be charged its own bytes, and would hold all."""
    whole: list[Any] = []

    def last(x: Any) -> Any:
        made = x + 1
        whole.append(weakref.ref(made.untyped_storage()))
        return made[-1]

    found = await s.call(module(torch, last), await s.put(ROWS))
    assert np.array_equal(found, ROWS[-1] + 1)
    assert whole[0]() is None


async def test_what_is_no_array_reaches_a_module_as_it_is(s: asc.Scheduler, torch: Any) -> None:
    class Odd:
        def __getattr__(self, name: str) -> None:
            return None

    odd = Odd()
    assert await s.call(module(torch, lambda x, odd: odd), ROWS, odd) is odd
