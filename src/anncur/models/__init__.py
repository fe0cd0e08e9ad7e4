"""Cross-encoders and dual encoders: their networks, their folders, and their export. Needs the extra `train`."""
