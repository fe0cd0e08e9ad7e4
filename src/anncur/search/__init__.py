"""One loop of rounds under a budget; a method proposes what to score next."""
