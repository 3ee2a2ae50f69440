"""The public home of `ClusterConnectionFactory`, which settings name."""

from .transport.cluster_factory import ClusterConnectionFactory

__all__ = ["ClusterConnectionFactory"]
