"""The test lab: hosts with a real sshd and simulated GPUs, on one machine, as root.

``api`` is the way in for tests, ``python -m tests.lab`` for people.
"""
