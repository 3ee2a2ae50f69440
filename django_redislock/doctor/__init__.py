"""Problems of the settings and the servers of locks, present and future.

Nothing is imported here: the system checks of a process that serves requests never run.
"""
