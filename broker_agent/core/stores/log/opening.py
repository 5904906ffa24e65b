"""Opening a log: what its last life left, made sense of.

    checkpoint whole, and segments as it says --> believe it
                                   otherwise  --> read every segment, and tell
    segments after the checkpoint             --> read, checked; torn end cut, damage told, sealed

Nothing of a former life is written to again. What lies beyond what is known to have been synced may
be in the machine's memory only, if a sync failed before: it is written once more, and synced,
before it counts.
"""

from __future__ import annotations

from contextlib import suppress

from broker_agent.core.stores.log.checkpoint import (
    CheckpointError,
    LogCheckpoint,
    decode_checkpoint,
)
from broker_agent.core.stores.log.coverage import Coverage
from broker_agent.core.stores.log.log_context import LogContext
from broker_agent.core.stores.log.log_files import (
    LogDiskFullError,
    LogFiles,
    LogFilesError,
    replace_file,
)
from broker_agent.core.stores.log.log_notices import LogCut, LogRebuilt
from broker_agent.core.stores.log.log_rows import LogRow, StampRange
from broker_agent.core.stores.log.recovery import (
    DamagedStretch,
    SegmentScan,
    scan_segment,
    segment_name,
    segment_numbers,
)
from broker_agent.core.stores.log.segments import (
    CHECKPOINT,
    INDEX,
    REWRITTEN,
    ActiveSegment,
    index_name,
    read_mark,
)

_COPY_BYTES = 4 << 20
_LEFT_OVER = (".new", REWRITTEN)


def recover(context: LogContext) -> None:
    """Raises LogFilesError, if the disk does not work."""
    files = context.files
    names = set(files.names())
    for name in sorted(names):
        if name.endswith(_LEFT_OVER):
            files.remove(name)
    numbers = segment_numbers(names)
    # Without any of these no segment was ever sealed.
    if any(name == CHECKPOINT or name.endswith(INDEX) for name in names):
        try:
            _believe(context, _read_checkpoint(files), numbers)
        except CheckpointError as error:
            context.notices.put(LogRebuilt(len(numbers), str(error)))
    marked, durable = read_mark(files)
    for number in _gone(context, numbers, marked if durable else 0):
        nbytes = durable if number == marked else 0
        _tell(context, number, DamagedStretch(0, nbytes, None, "the segment is gone"))
    context.newest_segment = max(context.newest_sealed, marked, *numbers)
    unknown = [number for number in numbers if number not in context.segments.sealed]
    for number in unknown:
        _recover_segment(context, number)
    if unknown and _note(context):
        for number in unknown:
            if number not in context.segments.sealed:
                # Nothing is in it, and nobody will ask where it is.
                files.remove(segment_name(number))


def _gone(context: LogContext, numbers: list[int], marked: int) -> list[int]:
    """Segments that there were: of those after the checkpoint none was dropped."""
    newest = max(context.newest_sealed, *numbers, 0)
    gone = [marked] if marked > newest else []
    if context.newest_sealed:
        gone += sorted({*range(context.newest_sealed + 1, newest)}.difference(numbers))
    return gone


def rebuild(context: LogContext, reason: str) -> None:
    """Believe nothing that is known of segments: read all of them. Raises LogFilesError."""
    context.seal()
    numbers = list(context.segments.sealed)
    context.notices.put(LogRebuilt(len(numbers), reason))
    for number in numbers:
        context.segments.forget_index(number)
    context.segments.sealed = {}
    context.segments.damaged = set()
    context.coverage = {}
    for number in numbers:
        _recover_segment(context, number)
    _note(context)


def _note(context: LogContext) -> bool:
    """So that the segments need not be read again. On a full disk they will be."""
    context.newest_sealed = context.newest_segment
    with suppress(LogDiskFullError):
        context.save_checkpoint()
        return True
    return False


def _read_checkpoint(files: LogFiles) -> LogCheckpoint:
    try:
        return decode_checkpoint(files.read(CHECKPOINT, 0, files.size(CHECKPOINT)))
    except LogFilesError as error:
        raise CheckpointError(f"the checkpoint cannot be read: {error}") from error


def _believe(context: LogContext, checkpoint: LogCheckpoint, numbers: list[int]) -> None:
    """Raises CheckpointError, if it is not of these files."""
    there = set(numbers)
    for number, info in checkpoint.segments.items():
        if number not in there:
            raise CheckpointError(f"segment {number} is gone")
        if context.files.size(segment_name(number)) != info.nbytes:
            raise CheckpointError(f"segment {number} has another size")
    context.segments.sealed = dict(checkpoint.segments)
    context.coverage = dict(checkpoint.coverage)
    context.segments.damaged = set(checkpoint.damaged)
    context.newest_sealed = checkpoint.newest_sealed
    context.next_frame = checkpoint.next_frame


def _recover_segment(context: LogContext, number: int) -> None:
    files, name = context.files, segment_name(number)
    size = files.size(name)
    marked, durable = read_mark(files)
    if index_name(number) in files.names() or number < context.newest_segment:
        # It had been sealed: all of it was synced. It may be shorter since, as written anew.
        durable = size
    elif number != marked:
        durable = 0
    scan = scan_segment(files, number, durable=durable, size=size)
    if scan.end < size:
        files.cut(name, scan.end)
        context.counters.log_bytes_cut += size - scan.end
        context.notices.put(LogCut(number, scan.end, size - scan.end))
    _write_again(files, name, scan)
    files.sync(name)
    _take_in(context, number, scan)


def _write_again(files: LogFiles, name: str, scan: SegmentScan) -> None:
    offset = min(scan.durable, scan.end)
    while offset < scan.end:
        data = files.read(name, offset, min(_COPY_BYTES, scan.end - offset))
        files.write_at(name, offset, data)
        offset += len(data)


def _take_in(context: LogContext, number: int, scan: SegmentScan) -> None:
    """Its frames, as if they were appended now."""
    active = ActiveSegment(number)
    covered: dict[str, Coverage] = {}
    for found in scan.frames:
        rows, sizes = context.segments.read_directory(number, found.offset, found.header)
        for row in rows:
            if context.coverage_of(row.unit, covered).missing_in(row.after, row.upto):
                context.cover(row, number, covered)
        active.add(found.offset, found.header, rows, sizes)
        context.next_frame = max(context.next_frame, found.header.number + 1)
    active.nbytes = scan.end
    context.coverage.update(covered)
    if not scan.end and not scan.damaged:
        return
    with suppress(LogDiskFullError):
        # Without it, it is made when somebody looks for something there.
        replace_file(context.files, index_name(number), active.index.encode())
    context.segments.sealed[number] = active.info()
    for damaged in scan.damaged:
        _tell(context, number, damaged)


def _tell(context: LogContext, number: int, damaged: DamagedStretch) -> None:
    rows = _rows_of(context, number, damaged)
    lost: list[tuple[str, StampRange]] | None = None
    if rows is not None:
        lost = [(row.unit, (row.after, row.upto)) for row in rows]
    events = sum(row.events for row in rows) if rows is not None else None
    context.segments.damaged.add((number, damaged.offset))
    context.tell_damage(number, damaged.offset, damaged.nbytes, events, lost, damaged.reason)


def _rows_of(context: LogContext, number: int, damaged: DamagedStretch) -> list[LogRow] | None:
    """Whose events these bytes were: all of them, if it was one frame whose directory is whole."""
    header = damaged.header
    if header is None or header.nbytes != damaged.nbytes:
        return None
    try:
        return context.segments.read_directory(number, damaged.offset, header)[0]
    except ValueError:
        return None
