"""Whether a request is let in."""
