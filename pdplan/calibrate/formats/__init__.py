"""One module per format of measured rows; adding a module adds a format."""
