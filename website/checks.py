"""Checks of a built site: every link and picture leads to a file and a place in it, and every picture has a text."""

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FILES = (".png", ".svg", ".jpg", ".gif")
"""Ends of the name that Sphinx gives a picture without a text."""


class _Page(HTMLParser):
    """The targets of a page's links and pictures, its anchors, and its pictures without a text."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what this tag refers to."""
        given = dict(attrs)
        self.links += [found for name in ("href", "src") if (found := given.get(name))]
        self.anchors |= {found for name in ("id", "name") if (found := given.get(name))}
        words = (given.get("alt") or "").strip()
        if tag == "img" and (not words or words.endswith(_FILES)):
            self.silent.append(given.get("src") or "")


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def faults(site: Path) -> Iterator[str]:
    """Every broken link within the site, and every picture without a text, one line each; external links are not tried.

    A site without pages is a fault.
    """
    found = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)  # the theme's templates
    if not found:
        yield f"{site}: no pages"
    for path in found:
        page, where = _read(path), path.relative_to(site)
        yield from (f"{where}: the picture {source[:80]!r} has no text" for source in page.silent)
        for link in dict.fromkeys(page.links):
            if fault := _broken(site, path, link):
                yield f"{where}: {link[:120]!r} {fault}"


def _broken(site: Path, path: Path, link: str) -> str:
    """The fault of a link, or an empty text."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_relative_to(site.resolve()) and target != path:
        return "leads out of the site"
    if not target.is_file():
        return "leads to no file"
    anchor = unquote(parts.fragment)
    if anchor and target.suffix == ".html" and anchor not in _read(target).anchors:
        return "leads to no such place"
    return ""
