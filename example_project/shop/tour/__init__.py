"""The parts of `manage.py tour`."""
