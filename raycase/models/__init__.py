"""Models: a configuration that loads no weights, and what it loads; the ones that ship are in folders here."""
