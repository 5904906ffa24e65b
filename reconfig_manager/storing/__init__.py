"""Which brokers keep the past, and which topics each of them keeps (Storing, Planning).

    requests by topic and broker ---> greedy ---> sites ---> assignment ---> refine
    distances, weights, L, M, k_t     step 1      2 and 3    step 4          ours
                                      s_t         S          which topic is where

*Planning* chooses M brokers that are stores, and is rare; *assignment* gives each topic t to k_t of
them, L topics a store at most, and may be often. What is compared is the traffic of the requests
for the past (eq. 3). All of it is `StoringProblem -> StoringSolution`, pure, and made of arrays;
`planners.py` is the registry. `reassignment.py` says whether going there is worth the transfers.
"""

from __future__ import annotations

# Planners that keep all limits by design: they may run in a manager. Here for those who need only
# their names.
STORE_ALGORITHMS = ("seq", "wrr", "refine")
DEFAULT_STORE_ALGORITHM = "refine"
