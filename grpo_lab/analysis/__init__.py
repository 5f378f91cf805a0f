"""Analysis of events and logs: the state of a run, its diagnosis, the matrix, the before/after table.

Nothing here knows a notebook, a terminal or a plotting library.
"""
