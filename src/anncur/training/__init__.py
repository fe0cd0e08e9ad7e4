"""Training and distillation: examples, one visible loop, a training task per model. Needs the extra `train`."""
