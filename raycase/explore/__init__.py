"""What is in an index: clusters, labels and duplicates among its rows, and a map that moves between conditions."""
