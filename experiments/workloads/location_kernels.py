"""What visits change of users' interests, compiled.

A user follows the cells where it and its friends are. Several of them may be in one: a cell is
dropped when the last of them leaves it, and added when the first of them comes.
"""

from __future__ import annotations

import numpy as np

from dynatops.kit.compiled import kernel
from experiments.sites import Ints


@kernel
def _is_followed(cell: int, user: int, without: int, cell_of: Ints, friends: Ints) -> bool:
    """Whether the user, or a friend of its, is there, `without` left out."""
    found = user != without and cell_of[user] == cell
    for friend in friends[user]:
        found |= friend != without and cell_of[friend] == cell
    return found


@kernel
def _bring(user: int, cell_of: Ints, friends: Ints, added: Ints) -> int:
    """The cells of its friends, each once, into `added`; how many."""
    size = 0
    for friend in friends[user]:
        there = cell_of[friend]
        is_new = there >= 0
        for known in added[:size]:
            is_new &= known != there
        if is_new:
            added[size] = there
            size += 1
    return size


@kernel
def visit_all(
    users: Ints,
    cells: Ints,
    cell_of: Ints,
    friends: Ints,
    first_follower: Ints,
    followers: Ints,
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """The columns of `UserChanges`: of each visit the user first, then whoever follows it and has a
    change by it. Followers who have not come yet follow nothing."""
    most = len(users)
    for user in users:
        most += first_follower[user + 1] - first_follower[user]
    who, where = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
    first_dropped = np.zeros(most + 1, dtype=np.int32)
    first_added = np.zeros(most + 1, dtype=np.int32)
    dropped = np.empty(most, dtype=np.int32)
    added = np.empty(most + len(users) * friends.shape[1], dtype=np.int32)
    count = drops = adds = 0
    for visit in range(len(users)):
        user, cell = users[visit], cells[visit]
        before = cell_of[user]
        cell_of[user] = cell
        for place in range(first_follower[user] - 1, first_follower[user + 1]):
            is_itself = place < first_follower[user]
            follower = user if is_itself else followers[place]
            if cell_of[follower] < 0:
                continue
            is_changed = is_itself
            if is_itself and before < 0:
                adds += _bring(user, cell_of, friends, added[adds:])
            elif before >= 0 and not _is_followed(before, follower, user, cell_of, friends):
                dropped[drops] = before
                drops += 1
                is_changed = True
            if not _is_followed(cell, follower, user, cell_of, friends):
                added[adds] = cell
                adds += 1
                is_changed = True
            # A user who goes is elsewhere now, even where its interests stay the same.
            if is_changed:
                who[count], where[count] = follower, cell_of[follower]
                count += 1
                first_dropped[count], first_added[count] = drops, adds
    return (
        who[:count].copy(),
        where[:count].copy(),
        first_dropped[: count + 1].copy(),
        dropped[:drops].copy(),
        first_added[: count + 1].copy(),
        added[:adds].copy(),
    )
