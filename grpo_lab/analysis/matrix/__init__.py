"""The matrix: which guard stops which failure, measured cell by cell.

`cells` lists the runs, measures each and counts them; `pool` makes them in processes that may die.
"""
