"""Integrations with other packages, each off until it is in INSTALLED_APPS."""
