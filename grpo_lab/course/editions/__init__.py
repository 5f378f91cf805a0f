"""Build the notebooks of the course from the labs' folders, for learners, instructors and nbgrader."""
