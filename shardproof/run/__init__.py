"""One run: request, phases, verdict, certificate, status.

In: a request. Out: a `Result` and a run directory. Open `pipeline.py` first.
"""
