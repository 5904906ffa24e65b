"""Measurements that a user can run against the installed package."""
