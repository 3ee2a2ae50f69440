"""The public home of the connection factories, which settings name."""

from .transport.cluster import ClusterConnectionFactory, OneAddressConnectionFactory

__all__ = ["ClusterConnectionFactory", "OneAddressConnectionFactory"]
