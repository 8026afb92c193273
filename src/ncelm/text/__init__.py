"""Text files to token stores: readers, sentence splitting, tokenization, vocabulary."""
