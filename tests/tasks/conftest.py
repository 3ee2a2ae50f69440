"""Fixtures for the tests of tasks."""

from tests.faults.conftest import own_server

__all__ = ["own_server"]
