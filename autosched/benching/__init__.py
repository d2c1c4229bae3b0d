"""The benchmark: the workloads of a suite, tuned and measured beside the vendor library and other tuners."""

from __future__ import annotations

from autosched.benching.result import Bench
from autosched.benching.row import BenchRow, EqualSeconds, RivalRow
from autosched.benching.run import BenchProgress, bench
from autosched.benching.suite import Workload, load_suite

__all__ = ["Bench", "BenchProgress", "BenchRow", "EqualSeconds", "RivalRow", "Workload", "bench", "load_suite"]
