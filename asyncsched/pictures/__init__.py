"""Pictures of plain records, self-contained: graphs of tasks as SVG, tables as HTML. Knows nothing of the package."""
