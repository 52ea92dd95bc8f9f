"""Stored tokens: their columns, codes, basis and sketches, and the vectors that are pooled from them."""
