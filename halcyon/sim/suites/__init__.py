"""The suites of `halcyon bench`: pure functions of a seed."""
