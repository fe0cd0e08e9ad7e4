"""Readers of items, queries and judgements from files, and the writer of runs."""
