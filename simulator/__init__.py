"""Runs the very cores that ship, in virtual time, on a network that misbehaves as a seed says."""
