"""One prepared run for a machine with a GPU, of parts that each stand alone; see docs/validation.md."""
