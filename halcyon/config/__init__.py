"""fleet.toml → frozen, validated settings; where Halcyon keeps its state."""
