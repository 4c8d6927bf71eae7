"""What the user names: plans, assumptions, the run directory.

In: paths. Out: a `Plan` and a folder to write to. Open `load.py` first.
"""
