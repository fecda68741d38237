"""Hardware, models, links, prices and efficiency constants: files in, frozen records with provenance out."""
