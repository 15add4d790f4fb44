"""Stands in for the user's serve.py in the documentation's commands."""

import program  # noqa: F401
