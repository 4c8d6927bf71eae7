"""What has to be concluded, from the single-device program alone. Trusted.

In: the single-device side. Out: its derivative (`gradients`), the conclusions about losses,
gradients and coverage (`conclusions`), whether boxes fill a tensor (`tiling`). Open
`conclusions.py` first.
"""
