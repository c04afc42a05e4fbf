"""Finding, reading and keeping lines of logs on a host."""
