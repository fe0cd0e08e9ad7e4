"""How much of the scorer's own top k a search finds."""
