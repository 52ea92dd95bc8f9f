"""The sample corpus: sentences of three domains and the conditions to embed them under."""
