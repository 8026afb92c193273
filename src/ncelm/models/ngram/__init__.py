"""N-gram models with modified Kneser–Ney smoothing."""
