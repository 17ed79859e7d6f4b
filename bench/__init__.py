"""Benchmarks. Each module prints one table of ratios: `python -m bench.overhead`, `.throughput`, `.loop_lag`."""
