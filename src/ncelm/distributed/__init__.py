"""Data-parallel training by several processes: collectives and the exchange of row deltas."""
