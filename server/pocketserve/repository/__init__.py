"""Find models in a folder, and read their manifests."""
