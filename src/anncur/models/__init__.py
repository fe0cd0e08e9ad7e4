"""Cross-encoders and dual encoders: how they are made, trained, distilled and exported. Needs the extra `train`."""
