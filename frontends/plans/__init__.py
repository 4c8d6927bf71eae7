"""Plans of our own: folders of Arrow tables, and plans written down as text. Untrusted.

In: a folder that `engine.plan_files.store` has written, or a file in the grammar of docs/text.md.
Out: a plan with both sides, held to what a stored one is held to. Open `frontend.py` first.
"""
