"""halcyond: the asyncio shell around the core."""
