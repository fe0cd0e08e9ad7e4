"""Methods that others have published or run, on the same loop and meter, to compare with."""
