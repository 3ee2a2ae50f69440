"""The parts of `manage.py demo`."""
