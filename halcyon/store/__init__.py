"""History in SQLite: migrations, one writer, queries."""
