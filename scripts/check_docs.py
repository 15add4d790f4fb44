"""Checks the Markdown of this repository: every link leads somewhere, the book's index is whole, every environment
variable is explained, the error messages people search for are still the ones the program prints, and lines of code that
a page counts are as many as it says.

    python3 scripts/check_docs.py
"""

import fnmatch
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What the sources name and only tests set, and beginnings of names.
NO_VARIABLE = re.compile(r"XSCHED_(?:AUTO_XQUEUE_|SIM_DIE_HOLDING_THE_LOCK|STANDIN_\w+|WRITE_\w+)$")


def files(*patterns):
    """The files of this repository that fit a pattern, without what was built."""
    found = []
    for place, directories, names in os.walk(ROOT):
        here = os.path.relpath(place, ROOT)
        directories[:] = sorted(name for name in directories if not name.startswith((".", "target", "__")))
        paths = [os.path.normpath(os.path.join(here, name)) for name in sorted(names)]
        found += [path for path in paths if any(fnmatch.fnmatch(path, pattern) for pattern in patterns)]
    return found


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text):
    """The names that headings have on the usual web sites."""
    names = set()
    for heading in re.findall(r"^#+ +(.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        names.add(name)
    return names


def links(path):
    """Links of a page that lead nowhere."""
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", without_code(read(path))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        to = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not os.path.exists(os.path.join(ROOT, to)):
            yield f"{path}: {target} leads nowhere"
        elif anchor and to.endswith(".md") and anchor not in anchors(read(to)):
            yield f"{path}: {to} has no heading #{anchor}"


def index():
    """Pages of the book that its index does not name."""
    book = read("docs/README.md")
    for page in files("docs/*.md"):
        name = os.path.relpath(page, "docs")
        if name != "README.md" and f"]({name})" not in book and f"]({name}#" not in book:
            yield f"docs/README.md: does not name {name}"


def variables():
    """Environment variables of the sources that no page explains."""
    page = read("docs/environment.md")
    named = set()
    for source in files("crates/*/src/*.rs", "python/xsched/*.py"):
        named |= set(re.findall(r'"(XSCHED_[A-Z0-9_]+|XLOG_[A-Z]+)"', read(source)))
    for name in sorted(named):
        if not NO_VARIABLE.match(name) and f"`{name}`" not in page:
            yield f"docs/environment.md: says nothing about {name}"


def messages():
    """Error messages that the program does not print."""
    # As one line without what depends on the case, so that a message is found however its source is broken up.
    sources = "\n".join(read(path) for path in files("crates/*/src/*.rs", "python/src/*.rs", "python/xsched/*.py"))
    sources = re.sub(r"\\\n\s*", "", sources)
    bold = re.findall(r"\*\*(.+?)\*\*", read("docs/troubleshooting.md"))
    for message in (message for words in bold for message in re.findall(r"`([^`]+)`", words)):
        if message.startswith(("ERROR: ld.so", "xsched: command not found")):
            continue  # the loader's and the shell's
        for part in re.split(r"\.\.\.", message):
            part = re.sub(r"^UnscheduledWarning: ", "", part).strip()
            words = re.sub(r"\b\d+\b|XQueueCreate|`|libxsched\.so", "\0", part)
            for piece in (piece.strip(" .:,()") for piece in words.split("\0")):
                if len(piece) > 3 and piece not in sources:
                    yield f"docs/troubleshooting.md: no source says “{piece}” (of “{message}”)"


def lines_of_code(path):
    """The lines of a Rust source without tests, comments and blank lines."""
    text = re.sub(r"^#\[cfg\(test\)\]\nmod \w+( \{.*|;\n)", "", read(path), flags=re.MULTILINE | re.DOTALL)
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def counts():
    """Lines that the page about platforms counts otherwise. A row without a file is the sum of those above it."""
    page, sources, above = "docs/adding-a-platform.md", "crates/xsched-lib/src", []
    rows = re.findall(r"^\| (.+?) \| (\d+) \|", read(page), re.MULTILINE)
    if not rows:
        yield f"{page}: counts nothing"
    for what, told in rows:
        file = re.fullmatch(r"`([\w/]+\.rs)`", what)
        if file and not os.path.exists(os.path.join(ROOT, sources, file[1])):
            yield f"{page}: there is no {file[1]}"
            continue
        lines = lines_of_code(f"{sources}/{file[1]}") if file else sum(above)
        above = [*above, lines] if file else []
        if lines != int(told):
            yield f"{page}: {what} has {lines} lines, not {told}"


def main():
    found = [line for path in files("*.md") for line in links(path)]
    found += [*index(), *variables(), *messages(), *counts()]
    for line in found:
        print(line)
    if found:
        sys.exit(f"{len(found)} mistakes in the documentation")
    print(f"{len(files('*.md'))} pages: every link leads somewhere")


if __name__ == "__main__":
    main()
