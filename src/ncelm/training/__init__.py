"""Training: configuration, schedule, engine, checkpoints, loop."""
