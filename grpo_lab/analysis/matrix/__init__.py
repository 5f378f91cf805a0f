"""The matrix: which guard stops which failure, measured cell by cell.

`cells` lists the runs, `pool` makes them in processes that may die, `results` measures each run and counts them.
"""
