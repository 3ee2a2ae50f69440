"""A lease from claim to end."""
