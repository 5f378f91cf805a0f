"""The matrix: which guard stops which failure, measured cell by cell.

`cells` says what is run, `pool` runs it in processes that may die, `results` reads what each run showed, `findings`
says what that means, and `derivation` finds the guards that are needed.
"""
