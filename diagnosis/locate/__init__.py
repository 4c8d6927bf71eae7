"""The first operator that does something else than the single device's.

In: a partition with failing conclusions. Out: culprits with ranks, layer and source. Open
`culprits.py` first.
"""
