"""Suites of plans, verified night after night.

What a suite is (`suite`), running one (`night`), what changed since the night before (`changes`),
and the report (`page`).
"""
