"""`manage.py redislock metrics`: the locks and jobs of the fleet, for Prometheus."""

from __future__ import annotations

import signal
from argparse import ArgumentTypeError
from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError

from ...commands import UNAVAILABLE
from ..arguments import WRONG, Parser
from ..output import Printer


class Metrics:
    help = "Write the locks and jobs of the whole fleet in Prometheus' text format, or serve them."

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument(
            "--serve",
            metavar="[HOST]:PORT",
            type=address_argument,
            help="Serve them at /metrics until stopped; without a host, on all addresses.",
        )

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        # Imported here, since prometheus-client is an extra.
        from ...contrib.prometheus.fleet import Fleet, Server

        if options["serve"] is None:
            text, all_up = Fleet().scrape()
            printer.raw(text.decode())
            return 0 if all_up else UNAVAILABLE
        host, port = options["serve"]
        try:
            server = Server(host, port)
        except OSError as error:
            said = f"Can't listen on {host}:{port}: {error}"
            raise CommandError(said, returncode=WRONG) from error
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with suppress(KeyboardInterrupt), server:  # Ctrl-C and SIGTERM are how it ends
                printer.raw(f"Serving {server.url}\n")
                server.serve_forever()
        finally:
            signal.signal(signal.SIGTERM, before)
        return 0


def address_argument(text: str) -> tuple[str, int]:
    """A host, or none, and a port: `:9108`, `127.0.0.1:9108`, `[::1]:9108`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ArgumentTypeError(f"write an IPv6 address in brackets, '[::1]:9108', not {text!r}")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ArgumentTypeError(f"write [HOST]:PORT, such as ':9108', not {text!r}")
    return host, int(port)
