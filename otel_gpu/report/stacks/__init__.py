"""Stack reports."""
