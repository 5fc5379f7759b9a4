"""turnwise."""
