"""Who subscribes to what, and how that changes: generators with seeds, and files."""
