"""Every algorithm of data/algorithms: how fast each learns, and which failure stops at its formulas."""
