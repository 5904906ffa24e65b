"""The wire contract, generated from proto/dynatops/v1. Never edited by hand."""
