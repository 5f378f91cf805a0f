"""Guards in a training loop that is not this project's: `gl.Guards`, `gl.GuardCallback`, `gl.guarded(GRPOTrainer)`."""
