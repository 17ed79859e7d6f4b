"""Memory of the host: recycled buffers, operations that run in them, and BLAS threads shared out between streams."""
