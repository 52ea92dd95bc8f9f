"""A map of an index: one page of HTML on which its rows move from one condition to another."""
