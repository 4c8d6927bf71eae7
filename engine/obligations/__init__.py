"""A claim written at small size, as equalities between terms. Trusted.

In: a claim. Out: the obligation that solvers decide (`obligation`, entries of expressions in
`entries`), and whether it holds at one random point (`spot_check`). Open `obligation.py` first.
"""
