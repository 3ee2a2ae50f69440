"""The connection factories for Redis Cluster, which settings name.

django-redis has no factory for a cluster, so here is one:

    CACHES = {
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": ["redis://node-1:6379", "redis://node-2:6379"],
            "OPTIONS": {"CONNECTION_FACTORY": "django_redislock.cluster.ClusterConnectionFactory"},
        }
    }

`LOCATION` names some of the nodes, which know the others. Everything else in such an entry (user,
password, time-outs, TLS by `rediss://`, and on Valkey 9 the number of the database) means the same
as for a single server, and holds for all nodes. The project's own use of this cache goes through
redis-py's `RedisCluster`, which knows no database but 0. `OneAddressConnectionFactory` is for a
sharded server that is reached like a single one.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django_redis.pool import ConnectionFactory
from redis.cluster import RedisCluster

from .transport.entries import database_of, node_of_url


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """For `OPTIONS["CONNECTION_FACTORY"]`: all nodes of a Redis Cluster."""

    routed = True
    _clusters: dict[str, RedisCluster] = {}

    def make_connection_params(self, url: str) -> dict[str, Any]:
        params: dict[str, Any] = super().make_connection_params(url)
        node_of_url(url)
        return params

    def get_connection(self, params: dict[str, Any]) -> Any:
        """Return redis-py's client, for the project's own use of the cache.

        Raises `ImproperlyConfigured` for a database other than 0.
        """
        if db := database_of(params["url"]):
            raise ImproperlyConfigured(
                f"redis-py's RedisCluster can't use database {db} of a cluster: locks can use "
                f"this entry of CACHES, and the project's cache needs another one"
            )
        options = {**params, **self.pool_cls_kwargs, **self.redis_client_cls_kwargs}
        options.pop("parser_class")  # only RedisCluster's own parser understands MOVED
        url = options.pop("url")
        # Entries for the same nodes may differ in the password, or in time-outs.
        key = f"{url} {sorted(options.items())}"
        if key not in self._clusters:
            self._clusters[key] = RedisCluster.from_url(url, **options)
        return self._clusters[key]

    def disconnect(self, connection: RedisCluster) -> None:
        connection.disconnect_connection_pools()


class OneAddressConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """For `OPTIONS["CONNECTION_FACTORY"]`: a server that is sharded behind one address.

    It connects as django-redis does. It says that keys of one script must be in one slot, which
    locks would otherwise find out by their first request.
    """

    clustered = True
