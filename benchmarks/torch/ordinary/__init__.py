"""Ordinary parallel training programs, each beside its single-device twin and its wrong twins.

They were written before any of them was run; benchmarks/torch/README.md says what the first run
said.  `cases.CASES` has them all.
"""
