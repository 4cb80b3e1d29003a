"""Causes from time accounting: how all the time of launching threads was spent."""
