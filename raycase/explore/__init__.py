"""What is in a corpus: clusters, labels, duplicates and a map of an index's rows; nearest neighbours of two outputs."""
