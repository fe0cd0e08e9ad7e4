"""The paper's experiments and ours: each turns a study into batches of cells to measure."""
