"""Connection factories for a Redis Cluster as an entry of CACHES, which django-redis lacks.

    CACHES = {
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": ["redis://node-1:6379", "redis://node-2:6379"],
            "OPTIONS": {"CONNECTION_FACTORY": "django_redislock.cluster.ClusterConnectionFactory"},
        }
    }

`LOCATION` names some of the nodes, which know the others. Everything else in such an entry (user,
password, time-outs, TLS by `rediss://`, and on Valkey 9 the number of the database) means the same
as for a single server, and holds for all nodes. Locks find the node of a key by cluster.py; the
project's own use of this cache goes through redis-py's `RedisCluster`, which knows no database but
0.

`OneAddressConnectionFactory` is for a sharded server that is reached like a single one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from django_redis.pool import ConnectionFactory
from redis import ConnectionPool
from redis.cluster import RedisCluster

from . import location
from .cluster import Cluster, Node


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """For `OPTIONS["CONNECTION_FACTORY"]`: all nodes of a Redis Cluster."""

    _clusters: dict[str, RedisCluster] = {}
    _pools_of_nodes: dict[str, Cluster[ConnectionPool]] = {}

    def make_connection_params(self, url: str) -> dict[str, Any]:
        params: dict[str, Any] = super().make_connection_params(url)
        node_of_url(url)
        return params

    def get_connection(self, params: dict[str, Any]) -> Any:
        """Return redis-py's client, for the project's own use of the cache.

        Raises `ImproperlyConfigured` for a database other than 0.
        """
        if db := _database(params["url"]):
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

    def get_or_create_pools(self, urls: Sequence[str]) -> Cluster[ConnectionPool]:
        """Return the pools of all nodes, which locks of all threads share."""
        # Entries for the same nodes may differ here, too.
        params = self.make_connection_params(urls[0]) | self.pool_cls_kwargs
        key = f"{urls} {sorted(params.items())}"
        found = self._pools_of_nodes.get(key)
        return found or self._pools_of_nodes.setdefault(key, self.get_pools(urls, {}))

    def get_pools(
        self, urls: Sequence[str], options: Mapping[str, Any]
    ) -> Cluster[ConnectionPool]:
        """Make a new pool for each node, with these additional options."""

        def make(node: Node) -> ConnectionPool:
            params = self.make_connection_params(url_of(urls[0], node))
            pool: ConnectionPool = self.get_connection_pool(params)
            pool.connection_kwargs.update(options)
            return pool

        return Cluster(nodes_of_urls(urls), make)


def nodes_of_urls(urls: Sequence[str]) -> list[Node]:
    """Return the nodes that these URLs name. Raises `ImproperlyConfigured` if one can't be a
    node's, or if they name several databases: the first URL is the pattern for all nodes."""
    nodes = [node_of_url(url) for url in urls]
    if len(databases := sorted({_database(url) for url in urls})) > 1:
        raise ImproperlyConfigured(
            f"The LOCATION of a Redis Cluster names the databases {databases}: write the same "
            f"one into each URL."
        )
    return nodes


def _database(url: str) -> int:
    its = location.read(url)
    return (its and its.db) or 0


class OneAddressConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """For `OPTIONS["CONNECTION_FACTORY"]`: a server that is sharded behind one address.

    It connects as django-redis does. It says that keys of one script must be in one slot, which
    locks would otherwise find out by their first request.
    """


def node_of_url(url: str) -> Node:
    """Return the node that a URL names. Raises `ImproperlyConfigured` if it can't be a node's."""
    its = location.read(url)
    del url  # a crash reporter shows variables
    if its is None:
        raise ImproperlyConfigured(f"The LOCATION of a node {location.UNREADABLE}.")
    if its.path:
        raise ImproperlyConfigured(
            f"{its.address.partition('#')[0]!r} can't be a node of a Redis Cluster: nodes are "
            f"reached by host and port. Write redis://host:6379"
        )
    return its.host, its.port


def url_of(url: str, node: Node) -> str:
    """Return the URL of another node that is reached in the same way."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    host = f"[{node[0]}]" if ":" in node[0] else node[0]
    return parts._replace(netloc=f"{user}{at}{host}:{node[1]}").geturl()
