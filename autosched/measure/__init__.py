"""Measuring schedules: compiling in parallel, proving right and timing, each in a process that may die."""
