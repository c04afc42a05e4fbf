"""A unit's start, followed: marks of its log, one host, all hosts."""
