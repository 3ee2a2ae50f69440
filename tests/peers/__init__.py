"""Other libraries' locks beside ours, in the same trouble: `python -m tests.peers`."""
