"""One command to Redis, reliably understood."""
