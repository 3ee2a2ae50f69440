"""The admin's page of locks, with something to see on it."""

from __future__ import annotations

import secrets
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.wsgi import get_wsgi_application

from devtools.redis_server import RedisServerError
from shop.demo import interrupts
from shop.demo.crowd import crowd
from shop.demo.sandbox import sandbox

USER = "operator"


class Server(ThreadingMixIn, WSGIServer):
    """For one person who looks around."""

    daemon_threads = True


class Handler(WSGIRequestHandler):
    def log_message(self, *_args: Any) -> None:
        """Not into the middle of what the command says."""


class Command(BaseCommand):
    help = "Serves the admin, with a Redis, a database and processes of its own, until Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")

    def handle(self, *, port: int, **_options: Any) -> None:
        interrupts.end_as_ctrl_c_does()
        try:
            # First, since a port that is taken should be known before all else is there.
            with self.server(port) as server:
                self.serve(server)
        except RedisServerError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("")  # after the terminal's ^C

    def server(self, port: int) -> WSGIServer:
        try:
            return make_server("127.0.0.1", port, get_wsgi_application(), Server, Handler)
        except OSError as error:
            raise CommandError(f"Port {port}: {error.strerror}. Try --port 0.") from error

    def serve(self, server: WSGIServer) -> None:
        with sandbox() as redis:
            self.stdout.write(f"Redis: {redis.description}")
            password = secrets.token_urlsafe(9)
            get_user_model().objects.create_superuser(USER, password=password)
            with crowd():
                self.stdout.write(
                    f"Locks: http://127.0.0.1:{server.server_port}/admin/django_redislock/lock/\n"
                    f"User: {USER}, password: {password}\n"
                    "Ctrl-C ends it, and leaves nothing behind."
                )
                self.stdout.flush()
                server.serve_forever()
