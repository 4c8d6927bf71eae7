"""When two claims share one template. Not trusted: the checker states each claim again.

In: claims. Out: keys and signatures under which equal claims meet (`keys`, `signatures`), and
obligations that changed copies of a plan share (`memo`). Open `keys.py` first.
"""
