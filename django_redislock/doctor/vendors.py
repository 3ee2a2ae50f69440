"""What is known of servers that can be rented, and of programs that speak as Redis does.

Nothing here was tried on a rented server: it is from the pages of the vendors, from source code,
and from answers to INFO that users have published. docs/offerings.md has the offerings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """Whose server it is, and how it is set up there."""

    name: str = ""
    """Empty: nobody's that is known."""
    hosts: tuple[str, ...] = ()
    """Patterns of host names."""
    info: Mapping[str, str] = field(default_factory=dict)
    """Patterns of values in the answer to INFO. One that matches is enough."""
    setting: str = "CONFIG SET {option} {value}"
    """How options of the server are set, ready to paste if possible."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The same for options that are set in another way."""
    user: str = "ACL SETUSER {user} {rules}"
    """How a user gets permissions."""
    one_database: bool = False
    """It has one database, whatever number a URL has."""
    durable: bool = False
    """A write is answered when it is safe: neither a restart nor a failover loses it."""

    def sets(self, option: str, value: object) -> str:
        """Return how to set an option of the server."""
        return self.options.get(option, self.setting).format(option=option, value=value)

    def allows(self, user: str, rules: str) -> str:
        """Return how to let a user do what these rules of an ACL say."""
        return self.user.format(user=user, rules=rules)


_PARAMETER = "--parameter-name-values ParameterName={option},ParameterValue={value}"
_AWS_USER = "aws elasticache modify-user --user-id {user} --append-access-string '{rules}'"
_CONSOLE = "In the console of {vendor}: set {{option}} to {{value}}"

KEYDB = Vendor(name="KeyDB", info={"mvcc_depth": "*", "executable": "*keydb-server"})
VENDORS = (
    Vendor(
        name="ElastiCache Serverless",
        hosts=("*.serverless.*.cache.amazonaws.com", "*.serverless.*.cache.amazonaws.com.cn"),
        setting="{option} can't be set there: use a node-based cache, or MemoryDB",
        user=_AWS_USER,
    ),
    Vendor(
        name="ElastiCache",
        hosts=("*.cache.amazonaws.com", "*.cache.amazonaws.com.cn"),
        info={"os": "Amazon ElastiCache*"},
        setting="aws elasticache modify-cache-parameter-group --cache-parameter-group-name "
        f"GROUP {_PARAMETER}",
        options={
            "appendonly": "Take MemoryDB, whose log keeps every write that was answered",
            "maxclients": "Take a larger node type, or open fewer connections",
        },
        user=_AWS_USER,
    ),
    Vendor(
        name="MemoryDB",
        hosts=("*.memorydb.*.amazonaws.com", "*.memorydb.*.amazonaws.com.cn"),
        info={"os": "Amazon MemoryDB*"},
        setting=f"aws memorydb update-parameter-group --parameter-group-name GROUP {_PARAMETER}",
        user="aws memorydb update-user --user-name {user} --access-string 'on {rules}'",
        durable=True,
    ),
    Vendor(
        name="Azure Managed Redis",
        hosts=("*.redis.azure.net", "*.redisenterprise.cache.azure.net"),
        setting="In the Azure portal: set {option} to {value}, if that can be set",
        options={
            "maxmemory-policy": "Update-AzRedisEnterpriseCacheDatabase -ClusterName NAME "
            "-ResourceGroupName GROUP -EvictionPolicy NoEviction",
            "appendonly": "Update-AzRedisEnterpriseCacheDatabase -ClusterName NAME "
            "-ResourceGroupName GROUP -AofPersistenceEnabled -AofPersistenceFrequency 1s",
        },
        user="In the Azure portal: give {user} {rules}",
        one_database=True,
    ),
    Vendor(
        name="Azure Cache for Redis",
        hosts=("*.redis.cache.windows.net",),
        setting="Set-AzRedisCache -Name NAME -ResourceGroupName GROUP -RedisConfiguration "
        '@{{"{option}" = "{value}"}}',
        user="In the Azure portal, Data Access Configuration: give {user} {rules}",
    ),
    Vendor(
        name="Redis Cloud",
        hosts=("*.redis-cloud.com", "*.redislabs.com", "*.rlrcp.com"),
        setting=_CONSOLE.format(vendor="Redis Cloud"),
        user="In the console of Redis Cloud, Data Access Control: give {user} {rules}",
        one_database=True,
    ),
    Vendor(
        name="Redis Enterprise",
        info={"rlec_version": "*"},
        setting=_CONSOLE.format(vendor="its Cluster Manager"),
        user="In its Cluster Manager, Access control: give {user} {rules}",
        one_database=True,
    ),
    Vendor(
        name="Upstash",
        hosts=("*.upstash.io",),
        info={"upstash_version": "*"},
        setting=_CONSOLE.format(vendor="Upstash"),
        options={"maxmemory-policy": "In the console of Upstash: switch Eviction off"},
    ),
    Vendor(
        name="Tair",
        hosts=("*.redis.rds.aliyuncs.com",),
        setting="In the console of Alibaba Cloud, Parameter Settings: {option} {value}",
    ),
    Vendor(
        name="Dragonfly",
        info={"dragonfly_version": "*"},
        setting="Start it with other flags, to the effect of: {option} {value}",
        options={
            "maxmemory-policy": "Start it without --cache_mode",
            "appendonly": "Start it with --snapshot_cron '* * * * *'",
            "maxclients": "Start it with --maxclients={value}",
        },
    ),
    KEYDB,
)
"""The first one that fits is the vendor."""

SOMEBODY = Vendor()
"""A server whose administrator may do what Redis can do."""
MANAGED = Vendor(
    setting="Set {option} to {value} where your provider lets you; Memorystore: gcloud redis "
    "instances update INSTANCE --region=REGION --update-redis-config={option}={value}"
)
"""A server that has no CONFIG, of a vendor that can't be seen: Memorystore has only an IP."""


def vendor_of(
    hosts: Iterable[str], info: Mapping[str, Any], *, configurable: bool = True
) -> Vendor:
    """Return the vendor of a server, by its host names and its answer to INFO. It is not
    `configurable` if it has no CONFIG."""
    names = [*hosts]
    for vendor in VENDORS:
        if any(fnmatchcase(host.lower(), its) for host in names for its in vendor.hosts) or any(
            fnmatchcase(str(info[key]), its) for key, its in vendor.info.items() if key in info
        ):
            return vendor
    return SOMEBODY if configurable else MANAGED


class Engine(NamedTuple):
    """A program, and the versions of it for locks."""

    name: str
    version: str
    """The field of INFO that has its version. `redis_version` says what others are compatible
    with."""
    oldest: tuple[int, ...] = ()
    newest: int = 0
    """The newest major version that was tested. 0: none was."""


REDIS = Engine("Redis", "redis_version", oldest=(6, 2), newest=8)
ENGINES = (
    Engine("Dragonfly", "dragonfly_version"),
    Engine("Upstash", "upstash_version"),
    Engine("Valkey", "valkey_version", newest=9),
)


def described(vendor: Vendor, info: Mapping[str, Any]) -> str:
    """Return the vendor, the program and its version, for people, as far as they are known."""
    engine = engine_of(vendor, info)
    known = [vendor.name] if vendor.name not in ("", engine.name) else []
    if engine.version in info:
        known.append(f"{engine.name} {info[engine.version]}")
    return ", ".join(known)


def engine_of(vendor: Vendor, info: Mapping[str, Any]) -> Engine:
    """Return the program by its answer to INFO."""
    if vendor == KEYDB:  # it has Redis' field for its own version, and begins at that of Redis
        return REDIS._replace(name=vendor.name, newest=0)
    return next((engine for engine in ENGINES if engine.version in info), REDIS)
