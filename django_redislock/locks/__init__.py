"""What people write: redis_lock and the other kinds of lock."""
