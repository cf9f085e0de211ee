"""What traffic to expect."""
