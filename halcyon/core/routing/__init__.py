"""Which replica takes the work."""
