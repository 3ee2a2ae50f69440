"""The example shop under the servers that people run it with, as its visitors see it."""
