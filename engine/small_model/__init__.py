"""The small-model reduction: how few positions of each axis suffice, and which. Trusted.

In: a claim at true size. Out: which positions represent the others and for how many each stands
(`grid`), with the bounds that make this exact (`bounds`, `digits`, `shared_dims`) and which axes
are not reduced (`kept_whole`). This is what makes a claim small. Open `grid.py` first; the argument
is docs/soundness.md, section 5.
"""
