"""Everything that assigns probabilities or scores to words."""
