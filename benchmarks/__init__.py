"""Programs that print figures; each runs as ``python -m benchmarks.NAME``."""
