"""What goes together with other packages, and is off until it is in INSTALLED_APPS."""
