"""Sources read in step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

from .rig import AsyncCounted, Counted, Mapped, Sized, drain, same, take

SOURCES: dict[str, Any] = {
    "list": lambda n: list(range(n)),
    "by index": Mapped,
    "iterable": Sized,
    "async": AsyncCounted,
    "function of the epoch": lambda n: lambda epoch: iter(range(n)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("lengths", [(5, 5), (5, 3), (3, 5)])
async def test_it_ends_with_the_shortest_and_is_resumed(
    s: asc.Scheduler, source: Any, lengths: tuple[int, int]
) -> None:
    first, second = lengths

    def make(strict: bool = False) -> Any:
        return s.pipeline(source(first)).zip([*"abcde"][:second], strict=strict).map(same)

    whole = list(zip(range(first), "abcde"[:second], strict=False))
    assert await drain(make()) == whole
    for taken in range(len(whole)):
        pipe, other = make(), make()
        assert await take(pipe, taken) == whole[:taken]
        other.load_state_dict(pipe.state_dict())
        assert await drain(other) == whole[taken:]
    if first == second:
        assert await drain(make(strict=True)) == whole
    else:
        with pytest.raises(ValueError, match=r"equal|zip\(\) argument 2 is"):
            await drain(make(strict=True))


async def test_by_index_orders_and_shares_are_of_both(s: asc.Scheduler) -> None:
    x, y = np.arange(10) * 10, Mapped(10)
    pipe = s.pipeline(x, order=range(9, -1, -1)).zip(y).shard(1, 3)
    assert await drain(pipe) == [(80, 8), (50, 5), (20, 2)]
    assert y.asked == [8, 5, 2]
    assert len(pipe) == 3
    assert len(s.pipeline(Sized(4)).zip(Sized(3))) == 3


@pytest.mark.parametrize("kind", [Counted, AsyncCounted])
async def test_all_of_them_are_closed(s: asc.Scheduler, kind: type[Counted]) -> None:
    one, other = kind(100), kind(100)
    await take(s.pipeline(one).zip(other), 2)
    assert (one.closed, other.closed) == (1, 1)


async def test_iterators_are_read_once(s: asc.Scheduler) -> None:
    pipe = s.pipeline([1, 2, 3]).zip(iter("abc"))
    assert await drain(pipe) == [(1, "a"), (2, "b"), (3, "c")]
    with pytest.raises(RuntimeError, match="the source is an iterator"):
        await drain(pipe)
    with pytest.raises(TypeError, match="the source is an iterator"):
        s.pipeline([1, 2, 3]).zip(iter("abc")).repeat(2)


async def test_what_is_zipped_is_zipped_again(s: asc.Scheduler) -> None:
    for last in (Counted(3), AsyncCounted(3)):
        assert await drain(s.pipeline([1, 2]).zip([*"ab"]).zip(last)) == [((1, "a"), 0), ((2, "b"), 1)]


async def test_what_is_read_by_index_ends_where_its_length_says(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline(Mapped(2)).zip(Counted(5))) == [(0, 0), (1, 1)]
    with pytest.raises(IndexError, match="inside"):
        await drain(s.pipeline(Mapped(5, IndexError("inside"))).zip(Counted(5)))


async def test_indices_from_the_end_are_those_of_the_shortest(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline([1, 2, 3], order=[-1, 0]).zip([*"ab"])) == [(2, "b"), (1, "a")]
    with pytest.raises(IndexError):
        await drain(s.pipeline([1, 2, 3], order=[-3]).zip([*"ab"]))


async def test_it_is_strict_in_any_order(s: asc.Scheduler) -> None:
    with pytest.raises(ValueError, match="not 3, 2"):
        await drain(s.pipeline([1, 2, 3], order=[0, 1]).zip([*"ab"], strict=True))


async def test_it_does_not_wait_for_more_of_the_others(s: asc.Scheduler) -> None:
    async def waits() -> AsyncIterator[int]:
        yield 0
        yield 1
        await asyncio.Event().wait()

    assert await drain(s.pipeline(AsyncCounted(2)).zip(waits())) == [(0, 0), (1, 1)]


async def test_an_iterator_beside_a_function_is_read_once(s: asc.Scheduler) -> None:
    pipe = s.pipeline(lambda epoch: range(2)).zip(iter("ab"))
    with pytest.raises(TypeError, match="read once"):
        pipe.repeat(2)
    assert await drain(pipe) == [(0, "a"), (1, "b")]
    with pytest.raises(RuntimeError, match="read once"):
        await drain(pipe)


async def test_what_a_function_gives_is_checked(s: asc.Scheduler) -> None:
    async def later(epoch: int) -> list[int]:
        return [1]

    for other, kind in ((lambda epoch: None, "NoneType"), (later, "coroutine")):
        with pytest.raises(TypeError, match=f"returned a {kind}, which"):
            await drain(s.pipeline([1]).zip(other))


class Rows:
    """Read by index, and in a row: as many libraries' data sets."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return 10 * index

    def __iter__(self) -> Iterator[int]:
        raise AssertionError


async def test_in_an_order_all_are_read_by_index(s: asc.Scheduler) -> None:
    for other in (Rows(), lambda epoch: Rows()):
        assert await drain(s.pipeline(Rows(), order=[2, 0]).zip(other).zip("abc")) == [((20, 20), "c"), ((0, 0), "a")]
    refused = "which Counted has not"
    with pytest.raises(TypeError, match=refused):
        s.pipeline([1, 2], order=[1, 0]).zip(Counted(3))
    with pytest.raises(TypeError, match=refused):
        await drain(s.pipeline([1, 2], order=[1, 0]).zip(lambda epoch: Counted(3)))


def failing(error: BaseException) -> Iterator[int]:
    yield 0
    raise error


async def failing_later(error: BaseException) -> AsyncIterator[int]:
    yield 0
    raise error


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda error: failing(error), "generator"),
        (lambda error: failing_later(error), "async_generator"),
        (lambda error: Mapped(5, error), "Mapped"),
        (lambda error: lambda epoch: failing(error), "generator"),
    ],
)
async def test_an_error_says_which_of_them_raised_it(s: asc.Scheduler, make: Any, kind: str) -> None:
    error = LookupError("mine")
    for _ in range(2):
        with pytest.raises(LookupError, match="mine") as caught:
            await drain(s.pipeline([*range(5)]).zip([*range(5)], make(error)).zip([*"abcde"]))
        told = f"raised by zipped source 3 of 3, of type {kind}"
        assert [note for note in caught.value.__notes__ if "zipped" in note] == [told]


async def test_what_it_says_names_the_users_sources(s: asc.Scheduler) -> None:
    pipe = s.pipeline([1, 2]).zip(Counted(3))
    assert str(pipe.zip(lambda epoch: [1]).map(same)) == "Pipeline(list, zip Counted, zip <lambda>, map same)"
    with pytest.raises(TypeError, match="is not known: its source has none .*'Counted' has no len"):
        len(pipe)
    with pytest.raises(TypeError, match="^Counted may block"):
        pipe.zip(AsyncCounted(3))


async def test_what_is_refused(s: asc.Scheduler) -> None:
    pipe = s.pipeline([1, 2])
    with pytest.raises(ValueError, match=r"`\.zip` comes first"):
        pipe.map(same).zip([1])
    with pytest.raises(TypeError, match=r"not Pipeline: .* `s\.pipeline\(a\)\.zip\(b\)`"):
        pipe.zip(pipe)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Counted may block"):
        s.pipeline(AsyncCounted(3)).zip(Counted(3))
