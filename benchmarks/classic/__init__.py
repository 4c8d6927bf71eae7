"""Classic mistakes of distributed training in plans written by hand, each beside its proved twin.

Open `cases.py` first; every other file but `run.py` holds the plans of one kind of parallelism.
"""
