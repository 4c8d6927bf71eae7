"""Reading a hostile file in a child process with bounded memory, time and result.

In: a path. Out: what the reading function returned, or why it was ended. Open `child.py` first.
Nothing of the file is executed.
"""
