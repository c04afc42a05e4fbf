"""Tests of single modules: no root, no network, no other host."""
