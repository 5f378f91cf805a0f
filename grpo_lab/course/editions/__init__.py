"""Build the notebooks of the course from labs/src, for learners, instructors and nbgrader."""
