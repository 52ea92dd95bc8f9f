"""What is in an index: clusters and labels of its rows under a condition, and a map that moves between conditions."""
