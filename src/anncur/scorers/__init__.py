"""Anything that gives a number for a query and an item, and the careful ways to call it."""
