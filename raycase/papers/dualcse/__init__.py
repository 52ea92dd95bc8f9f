"""DualCSE (Oda et al., 2025): a vector for what a sentence states and one for what it implies; entailment."""
