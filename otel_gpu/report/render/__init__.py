"""Faces of the document: it comes in, text goes out, and nothing else is read."""
