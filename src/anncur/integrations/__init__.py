"""An index, or a scorer, as a part of other libraries: one module for each, imported by its name.

None of these libraries comes with anncur, and none is imported before its module is."""
