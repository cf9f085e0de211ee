"""The halcyon command."""
