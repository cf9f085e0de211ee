"""Which model stands on which device."""
