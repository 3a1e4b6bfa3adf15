"""Measurements of speed, each a module to be run with ``python -m benchmarks.NAME``."""

import os

# Before torch is imported: its profiler says of every use that it has begun and ended.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
