"""Stands in for the user's train.py in the documentation's commands."""

import program  # noqa: F401
