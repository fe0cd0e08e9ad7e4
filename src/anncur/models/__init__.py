"""Cross-encoders and dual encoders: in torch (extra `train`), as ONNX graphs, their folders, and their export."""
