"""The tables of the founding paper, their reports and plots, and the demonstration."""
