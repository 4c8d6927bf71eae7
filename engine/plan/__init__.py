"""The plan: programs, bodies, operators, shards, and what must hold of any of them. Trusted.

In: what a frontend builds or a file holds. Out: a validated `Plan`, its files, what it assumes in
words. Open `ir.py` first, then `wellformed.py`.
"""
