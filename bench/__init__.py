"""Benchmarks: the costs of asyncsched, beside its alternatives.

    python -m bench                                  all subjects, into bench/results
    python -m bench peers beside.softmax             a subject, a row
    python -m bench --against REV beside heart       this working tree beside another revision
    python -m bench.render                           the pages and pictures of bench/results, the table in README.md

A *subject* is a module with `ROWS` (the list is `harness.subjects.SUBJECTS`), or a folder where it needs processes of
its own. A *row* is a work, with a *contestant* in each column. Ratios are to the first column that has a number. Works
are in the subject's module, or in `graphs`, `layers`, `perceptron` and `products`, which several subjects use.
`harness` lets the contestants take turns, each in a child process of its own, and prints and keeps the results.
"""
