"""Exercises and how answers are judged: the same checks for a learner's feedback and for a grade."""
