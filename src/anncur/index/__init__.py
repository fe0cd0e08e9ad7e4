"""The index: exact anchor scores, what is derived from them, and the way to search."""
