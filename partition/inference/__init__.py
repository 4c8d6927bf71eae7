"""Operators and collectives read over lineages (abstract interpretation). Not trusted.

In: operator instances. Out: the lineage of every parallel value. Open `trace.py` first: it goes
through a side instance by instance; `interpreter` reads operators, `collectives` communication,
`match` values that both sides compute by another route, `memoise` what is read only once.
"""
