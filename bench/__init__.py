"""Benchmarks. Each module prints one table of ratios: `python -m bench.peers`, `.beside`, `.overhead`."""
