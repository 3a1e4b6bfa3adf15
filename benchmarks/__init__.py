"""Measurements of speed, each a module to be run with ``python -m benchmarks.NAME``."""
