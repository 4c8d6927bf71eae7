"""Training steps of PyTorch: recorded on fake tensors, without memory, as plans.

`capture` runs a user's step once per rank in bounded children and gives a `trace.Trace` each;
`functional` makes straight-line code of one; `lower` writes it with declared operators; `plan`
joins both sides.  Only `capture`, `record`, `job`, `boxes`, `standins` and `replay` import torch.
"""
