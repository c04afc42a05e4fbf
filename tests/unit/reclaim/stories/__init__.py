"""Made-up histories of hosts that know who is wanted, and what an agent would read there."""
