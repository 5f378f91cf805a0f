"""nbgrader's settings for the labs of grpo_lab; nbgrader reads them in the folder that it is started in."""

import os

c = get_config()
c.CourseDirectory.course_id = "grpo-lab"
# The notebook alone is graded. Its cells write these files again, so nbgrader does not copy them to or from a learner.
c.CourseDirectory.ignore.extend(["answers", "runs", "*.zip"])
# source/ holds stubs and no solutions.
c.ClearSolutions.enabled = False
# Seconds of a cell; some answers are judged by short runs.
c.Execute.timeout = 300
# Runs in cells stop after 12 steps. The runs that judge answers have their full length.
os.environ.setdefault("GRPO_LAB_FAST", "1")
