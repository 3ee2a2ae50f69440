"""Processes with an earlier version of the package beside processes with this one."""
