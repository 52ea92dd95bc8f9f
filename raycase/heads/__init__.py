"""Heads in torch alone: what brings token states and conditions together, and what is stored of them."""
