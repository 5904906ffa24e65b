"""The papers' evaluations, on the code that ships: workloads, compared systems, figures."""
