"""Pictures of plain values, self-contained: graphs of tasks as SVG, tables as HTML, records as text or HTML. Knows
nothing of what the package computes."""
