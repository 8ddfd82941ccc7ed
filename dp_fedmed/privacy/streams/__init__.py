"""Keys, keyed streams and digests: secret and reproducible randomness."""
