"""One host, one channel, many calls."""
