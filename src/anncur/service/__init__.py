"""The HTTP service: searches, changes of items and re-ranking over the network (extra `serve`)."""
