"""Names of the columns of answers. `raycase.io.schema.RESERVED_COLUMNS` and `OF_ANSWERS` keep them off the input's."""

from raycase.io.schema import RANK, SCORE

QUERY, ASKED = "query", "asked"
POOLED = "pooled"  # whether the condition was pooled from stored tokens, not embedded in advance
STATED = "stated"  # where the model knows: probability that the text states something of the condition
PARTS = "parts"  # under weighted conditions: the cosine under each
VECTOR_RANK, TEXT_RANK = "vector_rank", "text_rank"  # by vectors and by words
WEIGHTS = "weights"  # where it is asked for: what the condition looked at

__all__ = ["ASKED", "PARTS", "POOLED", "QUERY", "RANK", "SCORE", "STATED", "TEXT_RANK", "VECTOR_RANK", "WEIGHTS"]
