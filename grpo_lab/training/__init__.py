"""The trainer: one step of GRPO, with guards, faults and observers at its stages, as a generator of events.

Nothing here prints, plots or writes a file.
"""
