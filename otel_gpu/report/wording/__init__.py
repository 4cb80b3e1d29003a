"""The words of reports: phrases, sentences, names and formats."""
