"""What may be said about a lock, and by whom."""
