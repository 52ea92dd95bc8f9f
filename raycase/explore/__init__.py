"""What is in an index: clusters of its rows under a condition, and a page on which rows move between conditions."""
