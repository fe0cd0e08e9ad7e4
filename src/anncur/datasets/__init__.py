"""Readers of items and queries from files."""
