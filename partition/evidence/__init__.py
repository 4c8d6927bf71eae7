"""What a plan records, and the two sides, held against each other. Not trusted; no verdict rests
on it.

In: a partition. Out: findings about index maps, casts, order and rounded constants. Open
`recorded.py` first.
"""
