"""The course: exercises, test inputs, reference solutions, and the notebooks built from them.

Nothing here grades a class or trusts a student's process; that is `grading`.
"""
