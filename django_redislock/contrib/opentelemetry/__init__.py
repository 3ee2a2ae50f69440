"""A span for each wait and each hold of a lock: put this package's name into INSTALLED_APPS."""
