"""Seeing what a scheduler does. Built on it, and known to nothing below."""
