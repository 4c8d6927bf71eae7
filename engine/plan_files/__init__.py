"""Plans from outside: checked, stored, printed and parsed. Trusted.

In: a plan that somebody built, a plan folder, a text. Out: a `Plan` that is well-formed and calls
every operator as it is declared, or an error that says where it is not. Open `wellformed.py` first,
then `store.py`.
"""
