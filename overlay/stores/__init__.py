"""Where the past of topics is kept: advertisements of stores, and the way of requests to them."""
