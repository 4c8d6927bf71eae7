"""The checker's own eye on structure: both sides run rank by rank at small sizes. Trusted.

In: a plan. Out: what its ranks end with differs, or where they are stuck; what was left out is
said. Open `rank_by_rank.py` first.
"""
