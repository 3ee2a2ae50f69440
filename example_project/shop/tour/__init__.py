"""What `manage.py tour` is made of."""
