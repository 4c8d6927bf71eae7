"""The neutral graph of captured programs, and how two of them become a plan.

In come `graph.Graph` objects, which a dialect's reader parsed (HLO and StableHLO text in
`frontends.hlo`); out goes a plan.  Nothing of a dialect is known here.  Open `graph` first.  Not
trusted for values: a translation is validated against an evaluator of the graph as it was read.
"""
