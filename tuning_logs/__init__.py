"""Recorded measurements of real devices; data, read through ``importlib.resources``."""
