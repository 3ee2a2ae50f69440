"""What is wrong with the settings and the servers of locks, or will be.

Nothing is imported here: the system checks of a process that serves requests never run.
"""
