"""Conversion of activities and reports to rows, and back."""
