"""The public home of the connection factories, which settings name."""

from .transport.cluster_factory import ClusterConnectionFactory, OneAddressConnectionFactory

__all__ = ["ClusterConnectionFactory", "OneAddressConnectionFactory"]
