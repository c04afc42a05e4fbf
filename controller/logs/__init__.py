"""Logs of hosts: sources, reading them, start-ups over a fleet."""
