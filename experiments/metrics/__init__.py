"""What is measured of a system under a workload, and how seeds are summed up."""
