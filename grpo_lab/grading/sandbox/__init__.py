"""Run answers in confinement: data in, data out, and all processes that an answer starts are killed with it."""
