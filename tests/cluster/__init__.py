"""Locks on a real Redis Cluster, and through a real Sentinel."""
