"""MixSP (Ponwitayarat et al., 2024): specialised projectors for scores of pairs; pairs without a condition."""

MORE_DOCS = {  # flag -> what its help adds
    "data": "sts: sentence1, sentence2, score (0 to 5).",
    "task": "sts: cosines without a condition against scores.",
}
