"""Plain Python that imports no other room."""
