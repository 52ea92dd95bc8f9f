"""What the papers compare with: the three encoders of C-STS (Deshpande et al., 2023) and low-rank adapters."""
