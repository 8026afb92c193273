"""N-gram models with modified Kneser–Ney smoothing: `estimate`, `query`, and `arpa`, the ARPA text format."""
