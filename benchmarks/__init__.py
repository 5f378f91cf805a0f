"""Speed against TRL and the price of watching and guarding, measured in turns within one process."""
