"""Plain Python that knows nobody."""
