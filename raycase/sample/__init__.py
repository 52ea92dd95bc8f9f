"""The sample corpus: sentences of three domains, and conditions that ask them different things."""
