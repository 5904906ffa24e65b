"""Generate dynatops/v1 from proto/dynatops/v1: messages, gRPC services, type stubs.

python tools/generate_wire.py            write the generated code
python tools/generate_wire.py --check    fail if what is committed is not current
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
TARGET = ROOT / "dynatops" / "v1"
OUTPUTS = ("--python_out", "--grpc_python_out", "--mypy_out", "--mypy_grpc_out")
INIT = '"""The wire contract, generated from proto/dynatops/v1. Never edited by hand."""\n'


def generate(into: Path) -> list[Path]:
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    # The plugins are programs beside this interpreter, whether or not its environment is active.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outcome = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}"]
        + [f"{output}={into}" for output in OUTPUTS]
        + sources,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode:
        sys.exit(outcome.stderr)
    package = into / "dynatops" / "v1"
    for path in package.glob("*_pb2_grpc.py*"):
        # Files without a service have nothing for gRPC.
        if "_to_server" not in path.read_text():
            path.unlink()
    (package / "__init__.py").write_text(INIT)
    return sorted(package.iterdir())


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        generated = generate(Path(scratch))
        names = {path.name for path in generated}
        present = {path.name for path in TARGET.glob("*.py*")}
        stale = sorted(present - names)
        for path in generated:
            target = TARGET / path.name
            if not target.exists() or not filecmp.cmp(path, target, shallow=False):
                stale.append(path.name)
        if "--check" not in sys.argv:
            TARGET.mkdir(exist_ok=True)
            for name in present - names:
                (TARGET / name).unlink()
            for path in generated:
                shutil.copyfile(path, TARGET / path.name)
        elif stale:
            print(f"dynatops/v1 is not current ({', '.join(stale)}): run `make proto`")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
