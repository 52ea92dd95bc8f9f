"""From written vectors to answers."""
