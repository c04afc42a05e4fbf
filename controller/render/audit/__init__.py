"""Screens of audits."""
