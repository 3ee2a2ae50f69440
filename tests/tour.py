"""The tour of example_project/ as a process, and a client that reads its page over HTTP."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from tests.processes import ROOT
from tests.waiting import PATIENCE

SLOW = 2 * PATIENCE
"""Each of its eight processes needs a turn, and a lock becomes stale after half a minute."""


class Tour:
    sessions: dict[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "example_project" / "manage.py", "tour", "--port=0"],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.browser.tour_settings",
                "TMPDIR": str(directory),
            },
        )
        give_up = threading.Timer(PATIENCE, self.process.kill)
        give_up.start()
        assert self.process.stdout is not None
        said = ""
        while not (found := re.search(r"(http://127.0.0.1:\d+)/tour/", said)):
            said += self.process.stdout.readline() or self._has_ended(said)
        give_up.cancel()
        self.url = found[1]
        self._cookies = CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(self._cookies)
        )

    def _has_ended(self, said: str) -> str:
        raise AssertionError(f"the tour has ended, or did not start in time: {said}")

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate()

    # The page, without a browser.

    def get(self, path: str = "/tour/") -> str:
        with self._opener.open(self.url + path, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def post(self, path: str) -> str:
        """Send the form of a button."""
        token = next(cookie.value for cookie in self._cookies if cookie.name == "csrftoken")
        form = urllib.parse.urlencode({"csrfmiddlewaretoken": token}).encode()
        with self._opener.open(self.url + path, form, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def push(self, button: str) -> str:
        """Press a button once; returns what it says."""
        return self.post(f"/tour/press/{button}/")

    def press(self, button: str, says: str) -> str:
        """Press a button until it says so: the lock may be on its way from one to another."""
        for _ in range(3):
            said = self.push(button)
            if re.search(says, said):
                break
        assert re.search(says, said), said
        return said

    def live(self) -> str:
        """The live part, as text."""
        return _text(self.get("/tour/live/"))

    def until(self, look: Callable[[], Any]) -> Any:
        """Look until there is something to see, as `eventually` does, but leave the tour time."""
        for _ in range(int(SLOW / 0.1)):
            if seen := look():
                return seen
            time.sleep(0.1)
        raise AssertionError(self.live())

    def sees(self, pattern: str) -> str:
        """Wait until the live part has that text."""
        return str(self.until(lambda: re.search(pattern, self.live()))[0])

    def lock(self, name: str) -> str:
        """The text about a lock."""
        blocks = re.split(r"<li>\s*(?=<h3>)", self.get("/tour/live/").split("<h2>What")[0])
        texts = map(_text, blocks[1:])
        return next((text for text in texts if text.startswith(name)), "")

    def holder(self) -> str:
        """The process that holds the stock's lock; "" if none does."""
        found = re.search(r":(\d+):customer-\d\s+for", self.lock("stock:1"))
        return found[1] if found else ""

    def customers(self) -> set[str]:
        """The customers' processes, which are children of the tour."""
        found = subprocess.run(
            ["pgrep", "-f", "-P", str(self.process.pid), "traffic customer"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,  # it fails if there is none
        )
        return set(found.stdout.split())

    def bars(self, kind: str) -> list[str]:
        """Where bars of that kind begin in the lanes."""
        lanes = self.get("/tour/live/").split('class="legend"')[0]
        return re.findall(rf'<rect class="{kind}" x="([\d.]+)%"', lanes)

    def sales(self) -> tuple[int, int]:
        """How many lamps are sold, and how many twice."""
        found = re.search(r"(\d+) lamps are sold, .*?(-?\d+) sold twice", self.live())
        assert found is not None
        return int(found[1]), int(found[2])

    def await_sales(self, count: int) -> int:
        """Wait until so many more are sold; returns how many are sold twice then."""
        before, _ = self.sales()
        self.until(lambda: self.sales()[0] >= before + count)
        return self.sales()[1]


def _text(document: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]*>", "", document)).split())
