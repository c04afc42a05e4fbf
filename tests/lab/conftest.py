"""The lab's fixtures, for the tests below this directory."""

from tests.lab.fixtures import labs, shared_lab

__all__ = ["labs", "shared_lab"]
