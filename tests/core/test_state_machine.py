"""The engine against a model of it, in random histories: every promise is checked after every step.

`machine` has what happens, `promises` what is checked, `model` what the test keeps of it. A history that fails is
printed, as a program of rules, with a line that reproduces it.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from asyncsched._core import engine, tenants
from tests.thorough import usually

from .machine import CarelessMachine, EngineMachine
from .promises import MOST_INLINE, QUANTUM


@pytest.mark.timeout(400)  # for a failure to be shrunk: otherwise it takes seconds
@pytest.mark.parametrize(
    ("machine", "examples"),
    [(EngineMachine, usually(50, 350)), (CarelessMachine, usually(15, 100))],
    ids=["exact", "careless"],
)
def test_random_histories(monkeypatch: pytest.MonkeyPatch, machine: type[EngineMachine], examples: int) -> None:
    monkeypatch.setattr(tenants, "QUANTUM", QUANTUM)
    monkeypatch.setattr(engine, "_MOST_INLINE", MOST_INLINE)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
