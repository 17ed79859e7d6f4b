"""The base of all benches: rows, children that take turns, results."""
