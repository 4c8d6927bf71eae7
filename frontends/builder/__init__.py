"""Write a plan by hand: used by the zoo, by tests and by readers of graphs.

In: calls. Out: a `Plan`; shapes and gradients are derived from the operators' declarations. Open
`builder.py` first.
"""
