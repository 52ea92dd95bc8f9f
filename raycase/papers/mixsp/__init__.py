"""MixSP (Ponwitayarat et al., 2024): specialised projectors for scores of pairs; pairs without a condition."""
