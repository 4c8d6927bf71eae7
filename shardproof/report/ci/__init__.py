"""A result as continuous integration reads it: JUnit XML, SARIF, annotations of a pull request.

In: a `Result` and the name of what was verified. Out: text. Open `files.py` first.
"""
