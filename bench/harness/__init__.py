"""What all benches have in common: rows, children that take turns, results."""
