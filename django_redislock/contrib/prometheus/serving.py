"""Serve the metrics of the fleet over HTTP, from a process of its own."""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from ...base.background import start
from ...base.clock import now
from .fleet import Fleet, response

MOST_AT_ONCE = 64
"""Requests that are read or answered at the same time. For one more, the oldest that was not yet
read is dropped, since it comes from a slow client."""
SLOWEST = 10.0
"""Seconds that a client has to send its request, and to take its answer."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = SLOWEST

    def do_GET(self) -> None:
        if not self.server.was_read(self.connection):
            return
        status, content_type, body = 404, "text/plain", b"The metrics are at /metrics.\n"
        if self.path.partition("?")[0] == "/metrics":
            status, content_type, body = response(self.server.fleet)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  http.server looks for this name

    def log_message(self, *_args: Any) -> None:
        """Scrapes come every few seconds, and are no news."""


class Server(HTTPServer):
    """Answers each request in a thread of its own, and waits for no client. Port 0: a free one."""

    request_queue_size = 64

    def __init__(self, host: str, port: int) -> None:
        self.fleet = Fleet()
        self._open: set[Any] = set()
        """The connections."""
        self._unread: dict[Any, float] = {}
        """Those whose request is being read, and until when, the oldest first."""
        its, address = _address(host, port)
        self.address_family = its
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer would look up the host's name, which may take long.
        super(HTTPServer, self).server_bind()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        text = str(host)
        return f"http://{f'[{text}]' if ':' in text else text}:{port}/metrics"

    def was_read(self, request: Any) -> bool:
        """Note that a request was read. Return False if it was dropped."""
        return self._unread.pop(request, None) is not None

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= MOST_AT_ONCE:
            self._drop(next(iter(self._unread), request))
        self._open.add(request)
        self._unread[request] = now() + SLOWEST
        if start(partial(self._answer, request, client_address), "redislock-metrics") is None:
            self._close(request)

    def service_actions(self) -> None:
        """Drop the requests that are late. The loop that accepts calls this twice a second."""
        for request, until in self._unread.copy().items():
            if now() > until:
                self._drop(request)

    def _drop(self, request: Any) -> None:
        """Let the thread that reads a request find its end."""
        self._unread.pop(request, None)
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client has gone
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self._close(request)

    def _close(self, request: Any) -> None:
        self._unread.pop(request, None)
        self._open.discard(request)
        self.shutdown_request(request)


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return where to listen. No host: on all addresses, those of IPv6 as well if there are."""
    if not host:
        return (
            (socket.AF_INET6, ("::", port))
            if socket.has_dualstack_ipv6()
            else (socket.AF_INET, ("0.0.0.0", port))
        )
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, address
