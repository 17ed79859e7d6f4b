"""What `Pipeline.statistics()` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .links import Link
from .stages import Stage


@dataclass(frozen=True)
class StageStatistics:
    """A snapshot of one stage in the present epoch, or the last. Times are seconds, added up over its workers."""

    name: str
    """Its number, and what it does."""
    workers: int
    """How many items it works on at once."""
    capacity: int
    """The most items that may be in it: being made, or waiting for the next stage."""
    items: int
    """Items it has finished, and put where the next stage takes them."""
    busy_seconds: float
    """Working: in its function, or reading the source. What runs in threads is timed there."""
    input_wait_seconds: float
    """Ready to take an item that was not there: the stage before it is slower."""
    room_wait_seconds: float
    """Without room for a result: the stage behind it is slower."""


@dataclass(frozen=True)
class PipelineStatistics:
    """A snapshot of a pipeline in the present epoch, or the last."""

    stages: tuple[StageStatistics, ...]
    """The source, and then each stage in the order of the pipeline."""
    seconds: float
    """Since the epoch was opened; until it was closed."""
    wait_seconds: float
    """How long the consumer has waited for items. The rest of `seconds` is the consumer's own work."""
    bottleneck: str
    """The name of what was busiest, per worker: a stage, or "the consumer"."""


def report(stages: Sequence[Stage], out: Link, started: float, now: float) -> PipelineStatistics:
    """A snapshot of these stages, of which the last puts into `out`."""
    found = tuple(_of(stage, now) for stage in stages)
    seconds = now - started if stages else 0.0
    waited = out.for_items.seconds(now)
    load = {stage.name: stage.busy_seconds / stage.workers for stage in found} | {"the consumer": seconds - waited}
    return PipelineStatistics(found, seconds, waited, max(load, key=load.__getitem__))


def _of(stage: Stage, now: float) -> StageStatistics:
    waits = stage.source.for_items.seconds(now), stage.out.for_room.seconds(now)
    return StageStatistics(stage.name, stage.workers, stage.out.capacity, stage.out.count, stage.busy(now), *waits)
