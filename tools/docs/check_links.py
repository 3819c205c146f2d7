"""Checks the links of the built site: every link of a page resolves, and nothing is loaded from another host.

usage: check_links.py SITE
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of a page, and the addresses that it links to and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loads.add(values.get("href", ""))
        if tag in ("img", "script", "source", "iframe"):
            self.loads |= {values[name] for name in ("src", "srcset") if name in values}


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    problems = []
    count = 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are those of a server's root
        name = path.relative_to(site)
        problems += [f"{name}: loads {address}" for address in page.loads if urlsplit(address).netloc]
        for address in page.links | page.loads:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                problems.append(f"{name}: no file for {address}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                problems.append(f"{name}: no anchor for {address}")
    print("\n".join(problems) or f"links ok: {len(pages)} pages, {count} links within the site, nothing from elsewhere")
    return 1 if problems or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
