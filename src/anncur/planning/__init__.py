"""What an index will cost, and how well it suits its scorer."""
