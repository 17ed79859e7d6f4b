"""A program: recorded operations in order, which run as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any

from . import cut
from .meta import Meta
from .op import Op, resolve


@dataclass(slots=True, eq=False)
class Ref:
    """Stands for the array in a slot, among arguments. Made by `ref`."""

    slot: int


ref: Callable[[int], Ref] = cache(Ref)  # cached, since every operation on a tensor and a number needs one


@dataclass(frozen=True, slots=True)
class Step:
    """One operation with its arguments. Its result goes to the next free slot."""

    op: Op
    args: tuple[Any, ...]  # Refs and scalars
    options: Mapping[str, Any]
    form: Meta  # of the result
    nbytes: int  # of the result's memory
    workspace: int
    where: str  # the line of the user's program

    @property
    def reads(self) -> list[int]:
        """The slots that it reads."""
        return [a.slot for a in self.args if type(a) is Ref]


def note_step(error: Exception, step: Step) -> None:
    """Note on an exception which step of a program raised it."""
    error.add_note(f"raised by the captured operation {step.op.name!r}, written at {step.where}")


@dataclass(slots=True)
class Program:
    """Steps over numbered slots: the inputs first, then each step's result.

    Attributes:
        forms: the forms of the inputs, which take the first slots.
        steps: what to run, in order.
        outputs: the slots of the results.
        in_place: the steps that write over their first operand, as found by `plan_writes`.
        given: the donated inputs, which may be written over.
    """

    forms: tuple[Meta, ...]
    steps: list[Step] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    in_place: set[int] = field(default_factory=set)
    given: tuple[int, ...] = ()

    @property
    def inputs(self) -> int:
        """The number of the inputs' slots."""
        return len(self.forms)

    def form(self, slot: int) -> Meta:
        """The form of the array in a slot."""
        return self.forms[slot] if slot < self.inputs else self.steps[slot - self.inputs].form

    def run(self, xp: Any, arrays: Sequence[Any]) -> list[Any]:
        """The results, from arrays of the namespace `xp`. Intermediates are dropped after their last use."""
        slots: list[Any] = list(arrays)
        last = self.last_uses()
        for i in range(len(self.steps)):
            slots.append(self.apply(i, xp, slots))
            for slot in last[i]:
                slots[slot] = None
        return [slots[slot] for slot in self.outputs]

    def peak(
        self, footprint: Callable[[int], int], parts: Sequence[tuple[range, Sequence[int] | None]] | None = None
    ) -> int:
        """The most bytes that intermediates and results take at once.

        Args:
            footprint: gives the bytes that a size takes in the device's memory.
            parts: the kernels: the steps of each, with the slots that it writes; its other slots take nothing. With
                None in place of slots, the step runs as it is. Without parts, every step does.
        """
        live = most = 0
        sizes = [0] * (self.inputs + len(self.steps))
        last = self.last_uses()
        for steps, writes in [(range(i, i + 1), None) for i in range(len(self.steps))] if parts is None else parts:
            for slot in [self.inputs + i for i in steps] if writes is None else writes:
                i = slot - self.inputs
                sizes[slot] = 0 if i in self.in_place else footprint(self.steps[i].nbytes)
                live += sizes[slot]
            workspace = max(self.steps[i].workspace for i in steps) if writes is None else 0
            most = max(most, live + workspace)
            live -= sum(sizes[slot] for i in steps for slot in last[i])
        return most

    def apply(self, index: int, xp: Any, slots: Any, out: Any = None) -> Any:
        """The result of one step. On the host it may be computed in parts, and in `out` if the operation takes that."""
        step = self.steps[index]
        args = [slots[a.slot] if type(a) is Ref else a for a in step.args]
        kernel = resolve(step.op, xp)
        try:
            if index in self.in_place:
                result = kernel(*args, out=args[0], **step.options)
            elif out is None or not step.op.out:
                result = kernel(*args, **step.options)
            else:
                result = cut.run(step.op, kernel, args, out, step.options)
        except Exception as error:
            note_step(error, step)
            raise
        # A result without axes may be a NumPy scalar, to which nothing can be assigned.
        return result if isinstance(result, xp.ndarray) else xp.asarray(result)

    def last_uses(self) -> list[list[int]]:
        """For each step, the slots that no later step needs. A view counts as a use of its base."""
        last: dict[int, int] = {}
        base: dict[int, int] = {}
        for i, step in enumerate(self.steps):
            made = self.inputs + i
            slots = step.reads
            if (step.op.view or i in self.in_place) and slots:
                base[made] = base.get(slots[0], slots[0])
            for slot in (made, *slots):
                last[slot] = last[base.get(slot, slot)] = i
        over: list[list[int]] = [[] for _ in self.steps]
        kept = {base.get(slot, slot) for slot in self.outputs} | set(self.outputs)
        for slot, i in last.items():
            if slot not in kept:
                over[i].append(slot)
        return over

    # -- runs: steps that may be fused ------------------------------------------------------------------------------

    def runs(self, shape_of: Callable[[int], Any]) -> Iterator[range]:
        """The steps in order. Neighbours of one shape come together.

        Args:
            shape_of: the shape of a run that may contain the step; None if none may.
        """
        for shape, steps in groupby(range(len(self.steps)), shape_of):
            found = list(steps)
            if shape is None:
                yield from [range(i, i + 1) for i in found]
            else:
                yield range(found[0], found[-1] + 1)

    def last_reads(self) -> dict[int, int]:
        """For each slot the last step that reads it; for a result, a number behind all steps."""
        found = {slot: i for i, step in enumerate(self.steps) for slot in step.reads}
        return found | dict.fromkeys(self.outputs, len(self.steps))

    def written(self, steps: range, last: dict[int, int]) -> list[int]:
        """The slots of a run's results that are read outside of it. The others never need to be arrays.

        `last` is the result of `last_reads`.
        """
        return [self.inputs + i for i in steps if last.get(self.inputs + i, -1) >= steps.stop]

    # -- assignments: steps that may be done in place ---------------------------------------------------------------

    def plan_writes(self, given: tuple[int, ...]) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
        """Find the assignments that may be done in place.

        They write to a buffer of the program's own, or to a donated input, of which only the new version is read
        afterwards.

        Args:
            given: the donated inputs.

        Returns:
            For each donated input, the slot of its last version in its buffer; and for those with an assignment that
            needs a copy, that step and a slot that is still to be read.
        """
        self.given = given
        last, versions, copied = self.last_reads(), {slot: slot for slot in given}, dict[int, tuple[int, int]]()
        owner = {slot: slot for slot in range(self.inputs)}  # in whose buffer a slot is, or may be
        sharing = {slot: [slot] for slot in owner}
        whole = set(given)  # slots that are all of a buffer that may be written over
        for i, step in enumerate(self.steps):
            made, first = self.inputs + i, owner[step.reads[0]] if step.reads else None
            shares = first is not None and (step.op.view or not step.op.out)
            if step.op.assigns and step.reads[0] in whole and not step.options.get("path"):
                assert first is not None
                # The assigned value must not be a part of the same buffer either.
                later = [s for s in sharing[first] if last.get(s, -1) > i or s in step.reads[1:]]
                if not later:
                    self.in_place.add(i)
                    shares = True
                elif first in versions:
                    copied.setdefault(first, (i, later[0]))
            owner[made] = first if shares and first is not None else made
            sharing.setdefault(owner[made], []).append(made)
            if i in self.in_place or (step.op.out and not shares):
                whole.add(made)
            if i in self.in_place and first in versions:
                versions[first] = made
        return versions, copied
