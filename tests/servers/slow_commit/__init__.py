"""SQLite, as on a disk that is busy."""
