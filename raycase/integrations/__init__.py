"""raycase inside other libraries: sentence-transformers, mteb, Ray Data."""
