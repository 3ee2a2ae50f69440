"""Makes the site's database: `python -m tests.browser.users` tells its users' sessions as JSON."""

from __future__ import annotations

import json

import django
from django.core.management import call_command

from tests.browser.site import USERS
from tests.worker import say


def session_of(name: str, permissions: list[str] | None) -> str:
    """The key of a session in which a new user of that name is logged in."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import Permission, User
    from django.contrib.sessions.backends.db import SessionStore

    user = User.objects.create_user(name, is_staff=True, is_superuser=permissions is None)
    if permissions:
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        assert user.user_permissions.count() == len(permissions)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return str(session.session_key)


if __name__ == "__main__":
    django.setup()
    call_command("migrate", verbosity=0)
    say(json.dumps({name: session_of(name, rights) for name, rights in USERS.items()}))
