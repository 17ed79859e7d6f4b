"""Tensors: handles on arrays to come, how an operation is issued, and the functions of the array API."""
