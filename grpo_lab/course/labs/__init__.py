"""One package for each lab: `page` describes its exercises, `cases` draws test inputs and expected answers."""
