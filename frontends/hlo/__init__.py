"""HLO and StableHLO text as graphs, and graphs of HLO as plans.

In comes text as XLA and JAX print it (``lower().as_text()``, dumps around the ``spmd-partitioning``
pass); out go `frontends.graphs.graph.Graph` objects and, by the table in `lower`, declared
operators.  Open `text` first (the grammar), then `inline` (calls, loops, constants), `lower`.  The
file is not trusted: nothing of it runs, counts and depths are bounded.  The translation is not
trusted either: `evaluate` computes what the graph as read means, in NumPy.
"""
