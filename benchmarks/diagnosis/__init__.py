"""How often the diagnosis names the true cause of runs of TRL."""
