"""One module a task: its judgements, its figures, its part of the report."""
