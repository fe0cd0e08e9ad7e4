"""Who ranks all items by an inner product with a query vector: one interface, and the engines behind it."""
