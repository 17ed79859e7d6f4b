"""Memory of the host: recycled buffers, rows that run in them, and BLAS threads shared out between streams."""
