"""A lease that is continued in another process, whose request or answer is lost: it has one
holder, or none."""

from __future__ import annotations

import pytest

from django_redislock import LeaseLost, LockUnavailable
from tests.faults.proxy import script
from tests.faults.scene import Scene, in_every_way

ADOPT = script("mutex_adopt")


@in_every_way
def test_one_lost(scene: Scene) -> None:
    """A lost connection is not noticed. Where another answer would have to be waited for, who
    restores is told so: then it may be tried again, or the lock is free."""
    text = scene.acquire().export()
    rule = scene.lose(ADOPT)
    if scene.tries == 1:
        with pytest.raises(LockUnavailable):
            scene.api.restore(text)
    if scene.tries == 1 and rule.carried_out:
        scene.is_free()
        with pytest.raises(LeaseLost):
            scene.api.restore(text)
        return
    lease = scene.api.restore(text)
    scene.owned(lease)
    with pytest.raises(LeaseLost):
        scene.api.restore(text)
    scene.release_last(lease)
