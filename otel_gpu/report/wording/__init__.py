"""Words of reports: phrases, sentences, names and formats."""
