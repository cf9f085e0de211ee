"""Orders of prefill for continuous replicas: each answers `IterationPolicy`."""
