"""What a person reads: terminal, HTML, inspection.

In: a result or a run directory. Out: text. Open `terminal.py` first.
"""
