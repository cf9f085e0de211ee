"""The discrete-event shell around the core."""
