"""The report of a run as one HTML file that needs nothing else.

`collect` reads the run directory, which is all there is to read; `mesh`, `schedule`, `lineages` and
`values` make the data of one picture each; `page` is the text of the file.
"""
