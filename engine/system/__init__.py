"""What operating systems do differently: limits, locks, memory of processes, their ends.

In: process numbers and descriptors. Out: what Linux gives, or the nearest thing elsewhere (macOS).
Open `portable.py`; `extras.py` tells of packages that may be missing, `names.py` of names that were
meant. Nothing else of ours imports
`fcntl` or `resource`. Trusted: on Linux it bounds what hostile files can take.
"""
