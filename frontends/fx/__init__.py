"""Graphs of PyTorch (ATen operators, as FX gives them) in JSON, a file for every rank.

In: a file or a folder of one file per rank for each side, and a relations file (`docs/graphs.md`).
Out: a plan.  Open `read.py` first.  Files are not trusted: they are read in a bounded child,
strictly, and nothing of them is executed.
"""
