"""As docs/leader.md says for workers of gevent."""

from typing import Any


def post_worker_init(worker: Any) -> None:
    from tests.servers.leading.apps import leader

    leader.start()
