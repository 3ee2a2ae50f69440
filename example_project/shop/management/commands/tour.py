"""The tour: the shop at work, and a page that shows its locks live."""

from __future__ import annotations

import os
import secrets
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.wsgi import get_wsgi_application
from django.test import override_settings

from devtools.redis_server import RedisServerError
from django_redislock import once
from shop.demo import interrupts
from shop.demo.sandbox import sandbox
from shop.settings import jobs
from shop.tour import moments, team, traffic, views

PORT = 8000
USER = "operator"
EVERY = 5.0
"""Seconds from one run of a periodic job to the next."""


class Server(ThreadingMixIn, WSGIServer):
    """A server for one visitor."""

    daemon_threads = True

    def handle_error(self, *_args: Any) -> None:
        """Ignore a browser that went away before its answer."""


class Handler(WSGIRequestHandler):
    def log_message(self, *_args: Any) -> None:
        """Log nothing between the lines of the command."""


class Command(BaseCommand):
    help = "Serves the tour, with a Redis, a database and processes of its own, until Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, help=f"default: {PORT}, or else any free one")

    def handle(self, *, port: int | None, **_options: Any) -> None:
        interrupts.end_as_ctrl_c_does()
        try:
            # First, since a port that is in use should be known before all else is started.
            with self.server(port) as server:
                self.serve(server)
        except RedisServerError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("")  # after the terminal's ^C

    def server(self, port: int | None) -> WSGIServer:
        application = get_wsgi_application()
        try:
            return make_server(
                "127.0.0.1", PORT if port is None else port, application, Server, Handler
            )
        except OSError as error:
            if port is None:
                return self.server(0)
            raise CommandError(f"Port {port}: {error.strerror}. Try --port 0.") from error

    def serve(self, server: WSGIServer) -> None:
        os.environ["SHOP_EVERY"] = str(EVERY)  # for the processes, and for this one
        often = {**settings.REDISLOCK, "JOBS": jobs(every=EVERY)}
        with (
            override_settings(REDISLOCK=often, ROOT_URLCONF="shop.tour.urls"),
            sandbox() as redis,
        ):
            self.stdout.write(f"Redis: {redis.description}")
            password = secrets.token_urlsafe(9)
            get_user_model().objects.create_superuser(USER, password=password)
            # A Redis of the user's own may remember the last tour.
            once("opening").forget()
            cache.delete_many([traffic.UNLOCKED])
            moments.forget()
            cache.set_many({"tour:computed": 0, "tour:asked": 0})
            with team.at_work() as views.team:
                self.stdout.write(
                    f"The tour: http://127.0.0.1:{server.server_port}/tour/\n"
                    f"Its last stop is the admin: user {USER}, password {password}\n"
                    "Ctrl-C ends it, and leaves nothing behind."
                )
                self.stdout.flush()
                server.serve_forever()
