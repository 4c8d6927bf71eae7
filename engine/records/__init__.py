"""A finished run on disk: tables, certificate, stored proofs. Trusted to say what it holds.

In: what a run found. Out: Arrow tables and `certificate.json`, and these read again. Open `run.py`
first.
"""
