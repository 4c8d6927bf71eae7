"""Files and processes. Trusted to read what is there; what it reads is not believed.

In: paths. Out: bytes of regular files within bounds (`files`), Arrow tables with a declared schema
(`tables`), what a ``with`` closes (`closing`), runs without cyclic collection (`garbage`). Open
`files.py` first.
"""
