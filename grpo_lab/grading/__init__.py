"""Grading a class: submissions in, reports out, with a sandbox between the student's code and the scoring.

Exercises, their checks and their right answers belong to `course`.
"""
