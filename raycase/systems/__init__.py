"""One paper, one module: from a sentence and a condition to a vector or a score."""
