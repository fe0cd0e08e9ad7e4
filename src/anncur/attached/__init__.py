"""Searching a collection that somebody else filled, with the embeddings that are in it: nothing is built."""
