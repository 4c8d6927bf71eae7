"""Why a refuted plan is wrong, and the edit that mends it. Not trusted: repairs are verified.

In: a refuted plan. Out: findings with their place, cause, verified repair and counterexample.
Rooms: `locate`, `repair`, `explain`; `search.py` is the loop over causes and the file to open
first, `outcome.py` says what it came to.
"""
