"""The first operator that does something else than the single device's.

In: a partition with failing conclusions. Out: divergences with ranks, layer and source. Open
`divergences.py` first.
"""
