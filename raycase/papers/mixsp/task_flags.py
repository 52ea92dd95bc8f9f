"""What `raycase evaluate` shows of this paper's task. Imports nothing slow."""

MORE_DOCS = {  # flag -> what its help adds
    "data": "sts: sentence1, sentence2, score (0 to 5).",
    "task": "sts: cosines without a condition against scores.",
}
