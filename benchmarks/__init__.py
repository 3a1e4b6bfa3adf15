"""Measurements of speed, each a module to be run with ``python -m benchmarks.NAME``."""

import os

# Set before torch is imported: its profiler logs the start and the end of every use.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
