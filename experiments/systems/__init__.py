"""Broker networks behind one interface, and how users come to their brokers."""
