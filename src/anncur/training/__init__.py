"""Training and distillation: examples and negatives, one visible loop, a task per model. Needs the extra `train`."""
