"""One package for each lab: `page` names the check of each exercise, `cases` draws test inputs and expected values."""
