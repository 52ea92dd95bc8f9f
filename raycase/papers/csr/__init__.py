"""CSR (Lin et al., 2024): a router by which a condition weighs the tokens."""
