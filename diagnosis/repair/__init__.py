"""Candidate edits of a plan, and whether its conclusions hold with one.

In: a divergence. Out: edits that were tried and hold. Open `candidates.py` first.
"""
