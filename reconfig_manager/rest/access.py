"""Who asks, and what that one may do. Tokens are known by their hashes only."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request
from fastapi.security import HTTPBearer

from dynatops.kit.addresses import counted_as, is_loopback
from dynatops.kit.security.token_rights import TokenRules
from dynatops.kit.security.tokens import Role, hash_of
from dynatops.kit.security.tokens_file import read_tokens
from reconfig_manager.rest.facade import Caller
from reconfig_manager.rest.problems import ProblemError

ANYONE = Caller("anonymous", Role.ADMIN)
_SCHEME = "bearer "
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="dynatops"'}
# For the schema; `Gatekeeper` (serving/admission.py) does the work, before all else.
bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token with a role, if managers ask for one.",
)


class Tokens:
    """Who has a role."""

    def __init__(self, path: str) -> None:
        """Without a path nobody is asked for a token. Raises TokensError."""
        self._path = path
        self._callers: dict[str, Caller] | None = None
        self.reload()

    def reload(self) -> None:
        """Read the file again; if that raises TokensError, all stays as it was."""
        if self._path:
            self._callers = _callers(read_tokens(self._path))

    @property
    def asked_for(self) -> bool:
        return self._callers is not None

    def caller(self, authorization: str) -> Caller:
        """Raises ProblemError."""
        if self._callers is None:
            return ANYONE
        if not authorization.lower().startswith(_SCHEME):
            raise ProblemError(
                401,
                "this manager asks for a token: Authorization: Bearer TOKEN",
                headers=_CHALLENGE,
            )
        # How long this takes tells something about the hash of what was tried, and nothing about
        # any token.
        found = self._callers.get(hash_of(authorization[len(_SCHEME) :].strip()))
        if found is None:
            raise ProblemError(
                401,
                "this manager does not know the token; is it in its tokens file, with a role?",
                headers=_CHALLENGE,
            )
        return found


def _callers(tokens: Iterable[TokenRules]) -> dict[str, Caller]:
    return {
        token.sha256: Caller(token.name, token.role) for token in tokens if token.role is not None
    }


def caller_of(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def watching_caller(request: Request) -> str:
    """For what one may have so much of: a token; where none is asked for, an address."""
    caller = caller_of(request)
    if caller is ANYONE and request.client is not None:
        return counted_as(request.client.host)
    return caller.name


def check_role(caller: Caller, needed: Role) -> None:
    """Raises ProblemError."""
    if not caller.role.includes(needed):
        raise ProblemError(
            403, f"the token {caller.name!r} is a {caller.role}'s: this takes an {needed}'s"
        )


def check_host(host: str) -> None:
    """Without tokens: only those who mean this machine.

    A web page that someone looks at here can make its own name lead to 127.0.0.1; the browser
    would then let it do everything. It cannot make the browser say another host.
    """
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if not is_loopback(name.strip("[]")):
        raise ProblemError(
            421, f"without tokens, only requests to 127.0.0.1 or localhost are answered, not {name}"
        )
