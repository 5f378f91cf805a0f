"""Speed against TRL, and the cost of guards, recorder and panel, measured in turns within one process."""
