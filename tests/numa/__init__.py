"""Tests on the machine with two NUMA nodes (python -m tests.lab up --numa-vm)."""
