"""Serve the metrics of the fleet over HTTP, from a process of its own."""

from __future__ import annotations

import socket
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from ...base.background import start_or_call
from .fleet import Fleet, response

MOST_AT_ONCE = 8
"""Requests that are answered at the same time. Further ones wait at the socket."""
SLOWEST = 10.0
"""Seconds that a client has for each part of its request."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = SLOWEST

    def do_GET(self) -> None:
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
    """Answers each request in a thread, up to `MOST_AT_ONCE`. Port 0: a free one."""

    request_queue_size = 64

    def __init__(self, host: str, port: int) -> None:
        self.fleet = Fleet()
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
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

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free.acquire()
        start_or_call(partial(self._answer, request, client_address), "redislock-metrics")

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client has gone
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)
            self._free.release()


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
