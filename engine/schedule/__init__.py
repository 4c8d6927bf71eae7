"""The order in which a plan runs: messages matched, data flow, operator instances. Trusted.

In: a `Plan`. Out: which sends, receives and collectives meet (`messages`), which call reads what
(`dataflow`), and the list of operator instances in which everything is written before it is read
(`unroll`, `instances`). Open `unroll.py` first.
"""
