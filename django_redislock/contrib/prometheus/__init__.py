"""Metrics of locks for Prometheus: put this package's name into INSTALLED_APPS."""
