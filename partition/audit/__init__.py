"""Symmetry off: every member of every family looked up on its own (``--exhaustive``).

In: a partition. Out: the instances that no stated template covers. Open `exhaustive.py` first. Not
trusted, and nothing rests on it: it audits.
"""
