"""JAX functions as HLO text: lowered for one device, and partitioned for a mesh of host devices.

In come a function and abstract arguments, out go two texts and where inputs and outputs lie
(`capture.Captured`).  Open `capture` first; `lowering` is what runs in the child, and the only file
that imports jax.  The user's function is traced, with the rights of whoever calls; nothing of it
runs on numbers.
"""
