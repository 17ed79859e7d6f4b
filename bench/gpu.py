"""On a card, against plain CuPy: `python -m bench.gpu`.

a  small operations: what issuing costs       b  large ones: whether the card is held up
c  copy in, compute, copy out                 d  from the end of a kernel to the end of its await
e  training, bounded and unbounded            f  the loop's lag beside a busy card
g  compute-sanitizer, where it is installed     h  captured elementwise steps: one kernel each

Times are the host's, around a synchronise; beside them is what CUDA's events say. Limits are taken from what is free.
The exit status is not zero where a target is missed, and the last line says what was not checked. The table is also
written to bench/results/gpu-<name of the card>.json. Without a card only `--quick` runs, on a fake, so that the
programs are known to work; its numbers mean nothing and are not kept there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import gpu_chains, gpu_copies, gpu_fused, gpu_latency, gpu_training
from .gpu_card import RESULTS, GPUReport, card


def _training(quick: bool, report: GPUReport) -> None:
    gpu_training.train(quick, report)
    gpu_training.run_ahead(quick, report)


SECTIONS: dict[str, Callable[[bool, GPUReport], None]] = {
    "a": gpu_chains.small,
    "b": gpu_chains.large,
    "c": gpu_copies.copies,
    "d": gpu_latency.latency,
    "e": _training,
    "f": gpu_latency.lag,
    "g": gpu_training.sanitize,
    "h": gpu_fused.fused,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("--quick", action="store_true", help="a smoke run: the numbers mean nothing")
    parser.add_argument("--json", metavar="PATH", help="write the results there instead")
    parser.add_argument("--only", metavar="NAMES", help=f"some sections of: {', '.join(SECTIONS)}")
    options = parser.parse_args(arguments)
    if options.quick and options.json and RESULTS in Path(options.json).resolve().parents:
        parser.error("a smoke run is not kept among the results: give another path")
    with card(options.quick) as name:
        report = GPUReport("gpu", gpu=name)
        path = options.json or (None if options.quick else report.path)
        for section in options.only.split(",") if options.only else SECTIONS:
            print(f"gpu {section} ...", file=sys.stderr, flush=True)
            SECTIONS[section](options.quick, report)
            if path:
                report.save(path)  # now, since a card may be lent for a short while only
        report.print()
        if path:
            print(f"written to {path}")
        missed = [] if options.quick else report.not_met
        if missed:
            print(f"NOT met: {'; '.join(missed)}")
        print(report.not_checked())
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
