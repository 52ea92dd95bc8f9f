"""The HTTP service of a model and an index: its flags, its requests and their checks, its answers; knows no Ray."""
