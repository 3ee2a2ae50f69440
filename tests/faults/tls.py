"""Certificates for a server with TLS and its clients, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


class Authority:
    """Signs certificates. They are in a directory, each with its key."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl command to make certificates")
        self._directory = directory
        self.certificate, self._key = self._files(name)
        _openssl("req", "-x509", "-days", "1", "-subj", f"/CN={name}", *self._new(self._key))(
            self.certificate
        )

    def sign(self, name: str) -> tuple[Path, Path]:
        """Return a certificate for 127.0.0.1, and its key."""
        certificate, key = self._files(name)
        request = certificate.with_suffix(".csr")
        extension = certificate.with_suffix(".ext")
        extension.write_text("subjectAltName=IP:127.0.0.1\n")
        _openssl("req", "-subj", f"/CN={name}", *self._new(key))(request)
        _openssl(
            *("x509", "-req", "-days", "1", "-in", request, "-extfile", extension),
            *("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial"),
        )(certificate)
        return certificate, key

    def _files(self, name: str) -> tuple[Path, Path]:
        return self._directory / f"{name}.pem", self._directory / f"{name}.key"

    @staticmethod
    def _new(key: Path) -> tuple[Any, ...]:
        return "-newkey", "rsa:2048", "-nodes", "-keyout", key


def _openssl(*words: Any) -> Any:
    def into(file: Path) -> None:
        command = ["openssl", *map(str, words), "-out", str(file)]
        subprocess.run(command, check=True, capture_output=True)

    return into
