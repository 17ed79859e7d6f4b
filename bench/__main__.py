"""The command line: `python -m bench --help`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from bench.harness import against, results
from bench.harness.rows import Result, Row, Unavailable
from bench.harness.subjects import SUBJECTS, Together, chosen, module_of
from bench.harness.turns import Turns


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    subjects = chosen(options.rows or list(SUBJECTS))
    if options.against:
        against.compare(options.against, subjects, _turns(options))
        return
    found: list[Result] = []
    for subject, rows in subjects.items():
        whole = not options.contestants and (subject in options.rows or not options.rows)
        kept = options.results if whole or options.results != results.RESULTS else None
        try:
            found.append(measured(subject, rows, _turns(options), kept))
        except Unavailable as error:
            _say(f"{subject}: skipped: {error}")
    if not found or (options.check and any(results.missed(result) for result in found)):
        sys.exit(1)


def _turns(options: argparse.Namespace) -> Turns:
    Turns.minutes = options.minutes
    return Turns(
        rounds=1 if options.quick else options.rounds,
        quick=options.quick,
        install=not options.no_install,
        only=frozenset(options.contestants.split(",") if options.contestants else ()),
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", epilog=f"subjects: {', '.join(SUBJECTS)}")
    parser.add_argument("rows", nargs="*", help="subjects, as `beside`, or rows of them, as `beside.softmax` (all)")
    parser.add_argument("--against", metavar="REV", help="this tree beside another revision: ratios with their spread")
    parser.add_argument("--rounds", type=int, default=7, help="how often each takes its turn (7)")
    parser.add_argument("--minutes", type=float, default=10, help="how long `soak` takes (10)")
    parser.add_argument("--quick", action="store_true", help="a smoke run of one round: the numbers mean nothing")
    parser.add_argument("--contestants", metavar="NAMES", help="only these, by commas: 'numpy,asyncsched numba'")
    parser.add_argument("--no-install", action="store_true", help="leave out contestants that are not installed")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="where results go (of whole subjects: bench/results)"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args(arguments)
    if options.results is None:
        options.results = None if options.quick else results.RESULTS
    elif options.quick and options.results.resolve() == results.RESULTS:
        parser.error("a smoke run is not kept among the results: give another folder")
    return options


def measured(subject: str, rows: Sequence[Row | Together], turns: Turns, folder: Path | None) -> Result:
    """All these rows, printed, and kept in a folder. Raises Unavailable where the subject cannot run here."""
    started = time.monotonic()
    around = getattr(module_of(subject), "around", nullcontext)
    result = results.begun(subject, turns.rounds, turns.quick)
    with turns, around(result):  # `around` may add to it, and name another file
        for row in rows:
            _say(f"{time.monotonic() - started:4.0f} s  {subject}.{row.key} ...")
            result["rows"] += _measured(row, turns)
            result |= {"contestants": turns.facts, "missing": turns.missing}
            if folder:  # now, since a machine may be lent for a short while only
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{result.get('file', subject)}.json"
                path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    results.show(result)
    return result


def _measured(row: Row | Together, turns: Turns) -> Iterator[Result]:
    if isinstance(row, Row):
        yield turns.measure(row)
        return
    try:
        yield from row.measure(turns)
    except Exception as error:  # any exception is why it has no number; other rows go on
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        yield Row(row.key, row.key, "count").result({}, {"all of it": reason})


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
