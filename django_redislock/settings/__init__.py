"""The settings: what can be written about a lock, and where."""
