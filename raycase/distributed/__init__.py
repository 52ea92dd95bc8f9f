"""The only room that imports Ray: clusters, jobs on Ray Data, Ray Train and Ray Tune."""
