"""Running models with torch and transformers; nothing outside this package imports them."""
