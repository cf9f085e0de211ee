"""Halcyon: an inference control plane for a team with a handful of GPUs."""

__version__ = "0.1.0"
