"""Files: atomic writes, locks, array files, metrics, the run directory, machine information."""
