"""The checker's own reading of lineages: sides, assumptions, definitions, views, ranges. Trusted.

In: a stored run and its plan. Out: whether every recorded lineage says something that is so
defined. Open `sides.py` first.
"""
