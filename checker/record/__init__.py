"""The certificate and the other files that a run leaves, held against what was checked. Trusted.

In: a run directory. Out: problems and notes. Open `certificate.py` first.
"""
