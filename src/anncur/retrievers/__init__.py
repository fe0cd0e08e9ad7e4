"""Cheap first guesses: retrievers that score every item for a query without the scorer."""
