"""Vector databases that others run: where they are, connections to them, and what goes wrong with these."""
