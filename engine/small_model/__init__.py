"""The small-model reduction: how few positions of each axis suffice, and which. Trusted.

In: a claim at true size. Out: which positions represent the others and for how many each stands
(`representatives`), with the bounds that make this exact (`bounds`, `mixed_radix`, `shared_dims`)
and which axes are not reduced (`kept_whole`). This is what makes a claim small. Open
`representatives.py` first; the argument is docs/soundness.md, section 5.
"""
