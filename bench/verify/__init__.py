"""The verification of XSched on a machine: scripts/verify starts it."""
