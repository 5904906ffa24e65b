"""Brokers in a tree: subscriptions are passed on from neighbour to neighbour, and events follow
them back."""
