"""From text to the states and vectors of one transformer."""
