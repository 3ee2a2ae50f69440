"""The admin's page of locks in a real Chromium, with locks that other processes hold."""
