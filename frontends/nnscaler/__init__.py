"""The reader of nnScaler's pickled execution plans.

`read.read_records` loads a plan with an allow-list unpickler into inert records (`unpickle`,
`allowed`, `inert`), `records` looks at them as typed, validated values, and `read.read_bounded`
does it all in a child with limits (`child`).  Nothing of the file is executed, and nnScaler, dill
and torch are never imported.
"""
