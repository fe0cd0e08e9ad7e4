"""What is on disk: files, manifests, segments, items and the query log."""
