"""Patterns for loops and pipelines, built on schedulers and scopes."""
