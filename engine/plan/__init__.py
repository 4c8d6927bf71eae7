"""The plan: programs, bodies, operators, shards, and what must hold of any of them. Trusted.

In: nothing of ours but exact arithmetic. Out: `Plan` and its parts, collectives as they are
declared, the table of what must hold, what a plan assumes and records. Open `ir.py` first.
"""
