"""Build the documentation as a site, in build/site/html; fail if anything in it leads nowhere.

The pages are those of docs/ and some of the repository's root, gathered in one folder, with their
links turned accordingly. A link to a file that is no page, such as a source, becomes its text: the
site stands alone. The generator checks what it knows of; then every built page is read, and each
link, anchor and picture looked for where it points, and nothing may be loaded from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^()\s]+)\)")
# Code between backquotes, and lines of code: what looks like a link there is none.
_CODE = re.compile(r"(`+).+?\1")
_ELSEWHERE = ("http:", "https:", "mailto:")
_LOADING = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "src")}
_LOADED_BY_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""")


class SiteError(Exception):
    """What is wrong with the site; a line each."""


@dataclass(frozen=True)
class Site:
    """Where its pages come from, and where they go."""

    root: Path

    @property
    def docs(self) -> Path:
        return self.root / "docs"

    @property
    def configuration(self) -> Path:
        return self.root / "zensical.toml"

    @property
    def gathered(self) -> Path:
        return self.root / "build" / "site" / "pages"

    @property
    def built(self) -> Path:
        return self.root / "build" / "site" / "html"

    @cached_property
    def pages(self) -> dict[Path, str]:
        """Where each page comes from -> its name in the site."""
        in_docs = {path: str(path.relative_to(self.docs)) for path in self.docs.rglob("*.md")}
        return in_docs | {self.root / name: target for name, target in ROOT_PAGES.items()}


# ---- gathering -----------------------------------------------------------------------------------


def gather(site: Site) -> None:
    """All pages in one folder, as the generator wants them."""
    shutil.rmtree(site.gathered, ignore_errors=True)
    shutil.copytree(site.docs, site.gathered)
    problems = []
    for source, name in sorted(site.pages.items()):
        text, wrong = turned(site, source)
        (site.gathered / name).write_text(text)
        problems += wrong
    listed = set(re.findall(r'"([\w/-]+\.md)"', site.configuration.read_text()))
    names = set(site.pages.values())
    problems += [f"{site.configuration.name}: no door has {name}" for name in names - listed]
    problems += [f"{site.configuration.name}: there is no {name}" for name in listed - names]
    # So that what README.md links to is there, although it is no page.
    problems += turned(site, site.root / "README.md")[1]
    if problems:
        raise SiteError("\n".join(sorted(problems)))


def turned(site: Site, source: Path) -> tuple[str, list[str]]:
    """The page with links as they are within the site; what is wrong with them."""
    problems: list[str] = []
    lines = []
    fenced = False
    for number, line in enumerate(source.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced or line.startswith("    "):
            lines.append(line)
            continue
        try:
            lines.append(turned_line(site, line, source))
        except SiteError as error:
            lines.append(line)
            problems.append(f"{source.relative_to(site.root)}:{number}: {error}")
    return "\n".join(lines) + "\n", problems


def turned_line(site: Site, line: str, source: Path) -> str:
    code = [match.span() for match in _CODE.finditer(line)]

    def turn(match: re.Match[str]) -> str:
        within = any(begin < match.start() and match.end() <= end for begin, end in code)
        return match[0] if within else turned_link(site, match, source)

    return _LINK.sub(turn, line)


def turned_link(site: Site, match: re.Match[str], source: Path) -> str:
    target, text = match["target"], match["text"]
    if target.startswith((*_ELSEWHERE, "#")):
        return match[0]
    name, hash_, anchor = target.partition("#")
    path = (source.parent / name).resolve()
    if not path.exists():
        raise SiteError(f"{target} leads nowhere")
    if path in site.pages:
        return (
            f"{match['image']}[{text}]({seen_from(site, source, site.pages[path])}{hash_}{anchor})"
        )
    if path.is_relative_to(site.docs):
        name = seen_from(site, source, str(path.relative_to(site.docs)))
        return f"{match['image']}[{text}]({name}{hash_}{anchor})"
    if match["image"]:
        raise SiteError(f"{target} is no picture of docs/")
    return text


def seen_from(site: Site, source: Path, name: str) -> str:
    """A name within the site, from the folder that the page is in there."""
    page = site.pages.get(source, source.name)
    return os.path.relpath(name, PurePosixPath(page).parent)


# ---- checking what was built ---------------------------------------------------------------------


class SitePage(HTMLParser):
    """Where a built page leads, what it loads, and what may be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loads += [given[name] for kind, name in _LOADING if kind == tag and name in given]
        if "mermaid" in given.get("class", "").split():
            self.loads.append("https://… (a mermaid drawing needs a script from elsewhere)")


def check(site: Site) -> None:
    built = {path: SitePage(path.read_text()) for path in sorted(site.built.rglob("*.html"))}
    problems = []
    for path, page in built.items():
        name = path.relative_to(site.built)
        problems += [f"{name}: {wrong}" for wrong in wrong_links(path, page, built)]
        problems += [f"{name}: loads {url}" for url in page.loads if from_elsewhere(url)]
    for path in site.built.rglob("*.css"):
        if _LOADED_BY_STYLE.search(path.read_text()):
            problems.append(f"{path.relative_to(site.built)}: loads something from elsewhere")
    if problems:
        raise SiteError("\n".join(problems))


def from_elsewhere(url: str) -> bool:
    return url.startswith((*_ELSEWHERE, "//"))


def wrong_links(path: Path, page: SitePage, built: dict[Path, SitePage]) -> Iterator[str]:
    if path.name == "404.html":  # its links begin at the server's root
        return
    for link in [*page.links, *page.loads]:
        if from_elsewhere(link) or link.startswith(("data:", "javascript:")):
            continue
        parts = urlsplit(link)
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.exists():
            yield f"{link} leads nowhere"
        elif target in built and unquote(parts.fragment) not in built[target].anchors:
            yield f"{link} leads to no anchor of {target.name}"


def build(site: Site) -> None:
    """Raises SiteError."""
    gather(site)
    shutil.rmtree(site.built, ignore_errors=True)
    generator = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    outcome = subprocess.run(
        [*generator, "--config-file", str(site.configuration)],
        cwd=site.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if outcome.returncode:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", outcome.stdout + outcome.stderr)
        raise SiteError(plain.partition("Traceback")[0].strip())
    check(site)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("--root", type=Path, default=root, help="of the repository")
    site = Site(parser.parse_args().root.resolve())
    try:
        build(site)
    except SiteError as error:
        print(f"the site is not whole:\n{error}", file=sys.stderr)
        return 1
    print(f"{site.built}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
