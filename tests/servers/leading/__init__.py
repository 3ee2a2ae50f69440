"""A project whose app starts a leader, as docs/leader.md says."""
