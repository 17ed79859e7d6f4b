"""The recipes: each runs, is as NumPy has it (which it compares itself, and ends otherwise), and keeps to its limit."""

from __future__ import annotations

import re

import pytest

from .test_demos import DEMOS, needs, run, said

RECIPES = ("feed", "out_of_core", "producer_consumer", "serve_and_train", "several_models")
MOST_LINES = 60


@pytest.mark.parametrize("name", RECIPES)
def test_it_fits_on_a_page_and_compares_with_numpy(name: str) -> None:
    text = (DEMOS / f"{name}.py").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert re.search(r"np\.testing\.assert_allclose\(|^    assert ", text, re.MULTILINE)


def peak_of(line: str) -> float:
    """The peak in MiB that a line tells."""
    found = re.search(r"peak ([\d.]+) MiB", line)
    assert found is not None, line
    return float(found[1])


def test_producer_and_consumers_lock_each_other_out_without_reserves_alone() -> None:
    lines = run("producer_consumer", 24)
    assert said(lines, "65.9 MiB of frames under a limit of 32 MiB")
    stuck = said(lines, "without reserves: put ")
    assert "needs 4,194,304 bytes, and " in stuck
    assert "of the 33,554,432 allowed are held; nothing in flight will free any" in stuck
    done = said(lines, "with reserves: 24 frames, as NumPy has them")
    assert peak_of(done) <= 32


@needs("starlette")
def test_a_feed_answers_more_clients_than_fit_at_a_time() -> None:
    done = said(run("feed", 4), "6 clients, 4 answers each, as NumPy has them")
    assert done.endswith("under a limit of 4 MiB")
    assert 1 < peak_of(done) <= 4


def test_an_array_on_disk_is_reduced_in_a_fraction_of_its_size() -> None:
    done = said(run("out_of_core", 64), "64 MiB on disk, as NumPy has it")
    assert done.endswith("under a limit of 16 MiB")
    assert 4 < peak_of(done) <= 16


@needs("starlette", "httpx")
def test_a_server_answers_while_a_model_learns_as_it_would_alone() -> None:
    lines = run("serve_and_train", 60)
    found = re.fullmatch(
        r"loss ([\d.]+) to ([\d.]+) in 60 steps, as alone; (\d+) answers, each of one step", said(lines, "loss ")
    )
    assert found is not None
    assert float(found[2]) < float(found[1]) / 5
    assert int(found[3]) > 0
    assert said(lines, "peak ").endswith("under a limit of 4 MiB")
    assert peak_of(lines[-1]) <= 4


@needs("starlette", "httpx")
def test_several_models_answer_under_one_limit() -> None:
    lines = run("several_models", 40)
    for name, answers in (("small", 10), ("medium", 10), ("large", 20)):
        assert re.fullmatch(rf"{name} +{answers} answers in \d+ batches, as NumPy has them", said(lines, name))
    assert said(lines, "peak ").endswith("under a limit of 8 MiB")
    assert peak_of(lines[-1]) <= 8
