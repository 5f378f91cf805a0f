"""How often the diagnosis names the true cause: on runs of this project, and on runs of TRL."""
