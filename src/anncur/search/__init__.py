"""One loop of rounds under a budget; a method is a policy that says what to score next."""
