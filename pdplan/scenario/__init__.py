"""What the user asked: the scenario file, its validation, and its resolution against the catalog."""
