"""Tests of periodic jobs."""
