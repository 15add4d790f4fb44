#!/usr/bin/env python3
"""Checks the Markdown pages: links resolve, the index of docs/ is complete, every environment variable is described, the
error messages in docs/troubleshooting.md are ones that the program prints, the tests that docs/security.md names exist, translated pages have the commands and figures of
the originals, pages of docs/ begin with what the reader can do after them, docs/amd.md lists those of its platform, and counts of lines of code are correct.

    python3 scripts/check_docs.py
    python3 scripts/check_docs.py --installed DIRECTORY     only the links of pages below an installation's directory
"""

import fnmatch
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Variables that only tests set, and prefixes of names.
UNDOCUMENTED = re.compile(r"XSCHED_(?:AUTO_XQUEUE_|SIM_DIE_HOLDING_THE_LOCK|STANDIN_\w+|WRITE_\w+)$")


def files(*patterns):
    """The files of this repository that match a pattern, without build products."""
    found = []
    for parent, directories, names in os.walk(ROOT):
        here = os.path.relpath(parent, ROOT)
        directories[:] = sorted(name for name in directories if not name.startswith((".", "target", "__")))
        paths = [os.path.normpath(os.path.join(here, name)) for name in sorted(names)]
        found += [path for path in paths if any(fnmatch.fnmatch(path, pattern) for pattern in patterns)]
    return found


def read(path, root=ROOT):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text):
    """The anchors that web sites generate for headings."""
    names = set()
    for heading in re.findall(r"^#+ +(.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        names.add(name)
    return names


def links(path, root=ROOT):
    """Links of a page whose file or heading does not exist below the root."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(read(path, root))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        to = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if to.startswith("..") or not os.path.exists(os.path.join(root, to)):
            yield f"{path}: the target of the link {target} does not exist"
        elif anchor and to.endswith(".md") and anchor not in anchors(read(to, root)):
            yield f"{path}: {to} has no heading #{anchor}"


def check_installed(directory):
    """Checks the links of the pages of an installation."""
    pages = [os.path.relpath(os.path.join(parent, name), directory) for parent, _, names in os.walk(directory)
             for name in sorted(names) if name.endswith(".md")]
    broken = [line for path in pages for line in links(path, directory)]
    for line in broken:
        print(line)
    if broken or not pages:
        sys.exit(f"{len(broken)} broken links in {len(pages)} pages below {directory}")
    print(f"{len(pages)} pages below {directory}: every link resolves")


def index():
    """Pages of docs/ that the index does not name."""
    book = read("docs/README.md")
    for page in files("docs/*.md"):
        name = os.path.relpath(page, "docs")
        if name != "README.md" and f"]({name})" not in book and f"]({name}#" not in book:
            yield f"docs/README.md: does not name {name}"


def variables():
    """Environment variables in the sources that docs/environment.md does not describe."""
    page = read("docs/environment.md")
    named = set()
    for source in files("crates/*/src/*.rs", "python/xsched/*.py"):
        named |= set(re.findall(r'"(XSCHED_[A-Z0-9_]+|XLOG_[A-Z]+)"', read(source)))
    for name in sorted(named):
        if not UNDOCUMENTED.match(name) and f"`{name}`" not in page:
            yield f"docs/environment.md: does not describe {name}"


def messages():
    """Error messages in docs/troubleshooting.md that the program does not print."""
    # Continued strings are joined, so that a message is found however its source is wrapped.
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
                    yield f"docs/troubleshooting.md: no source contains “{piece}” (of “{message}”)"


def platform_messages():
    """Messages of the HIP platform that docs/amd.md does not list, and messages that it lists but no source contains."""
    page, sources = "docs/amd.md", ""
    for path in files("crates/xsched-lib/src/platforms/hip/*.rs"):
        if "/doctor" not in path:
            sources += re.sub(r"\\\n\s*", "", read(path))
    table = re.search(r"^## Messages$(.*?)^## ", read(page), re.MULTILINE | re.DOTALL)[1]
    reported = re.findall(r'report\(\s*Severity::\w+,\s*format_args!\(\s*"((?:[^"\\]|\\.)*)"', sources)
    reported += re.findall(r'let line =\s*(?:format_args!\(\s*)?"((?:[^"\\]|\\.)*)"', sources)
    for message in reported:
        pieces = [piece.strip(" .:,()`") for piece in re.split(r"\{[^}]*\}", message)]
        missing = [piece for piece in pieces if len(piece) > 3 and piece not in table]
        if missing:
            yield f"{page}: the messages do not contain “{missing[0]}” (of “{message}”)"
    for message in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE):
        for piece in (piece.strip(" .:,()`") for piece in re.split(r"\.\.\.|\b\d+\b|/dev/kfd|libamdhip64\.so|XSCHED_\w+|: | by |\b(?:HIP|HSA|level)\b", message)):
            if len(piece) > 3 and piece not in sources:
                yield f"{page}: no source contains “{piece}” (of “{message}”)"


def lines_of_code(path):
    """The lines of a Rust source without tests, comments and blank lines."""
    text = re.sub(r"^#\[cfg\(test\)\]\nmod \w+( \{.*|;\n)", "", read(path), flags=re.MULTILINE | re.DOTALL)
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def counts():
    """Wrong line counts on the page about platforms. A row without a file is the sum of the rows above it."""
    page, sources, above = "docs/adding-a-platform.md", "crates/xsched-lib/src", []
    rows = re.findall(r"^\| (.+?) \| (\d+) \|", read(page), re.MULTILINE)
    if not rows:
        yield f"{page}: has no line counts"
    for what, count in rows:
        file = re.fullmatch(r"`([\w/]+\.rs)`", what)
        if file and not os.path.exists(os.path.join(ROOT, sources, file[1])):
            yield f"{page}: there is no {file[1]}"
            continue
        lines = lines_of_code(f"{sources}/{file[1]}") if file else sum(above)
        above = [*above, lines] if file else []
        if lines != int(count):
            yield f"{page}: {what} has {lines} lines, not {count}"


def claims():
    """Claims in docs/security.md without a test, or with one that does not exist or is ignored."""
    page = "docs/security.md"
    table = re.search(r"<!-- claims -->(.*?)<!-- end -->", read(page), re.DOTALL)[1]
    rows = [row for row in table.strip().splitlines()[2:] if row.startswith("|")]
    if not rows:
        yield f"{page}: has no claims"
    for row in rows:
        claim = row.split("|")[1].strip()
        tests = re.findall(r"`([\w./-]+): (\w+)`", row)
        if not tests:
            yield f"{page}: no test for “{claim}”"
        for file, function in tests:
            if not os.path.exists(os.path.join(ROOT, file)):
                yield f"{page}: {file} does not exist (of “{claim}”)"
            elif not re.search(rf"#\[test\]\n\s*fn {function}\(", read(file)):
                yield f"{page}: {file} has no test {function} (of “{claim}”)"


MAX_HOPS = 7
MAX_TERMS = 40


def hops():
    """Walks through the code in ARCHITECTURE.md that are too long, or name a function that its file does not define."""
    walks = re.findall(r"<!-- hops -->(.*?)<!-- end -->", read("ARCHITECTURE.md"), re.DOTALL)
    if len(walks) != 2:
        yield f"ARCHITECTURE.md: has {len(walks)} walks through the code, not 2"
    for walk in walks:
        steps = re.findall(r"^\d+\. (?:`([\w./-]+): (\w+)`)?", walk, re.MULTILINE)
        if len(steps) > MAX_HOPS:
            yield f"ARCHITECTURE.md: a walk has {len(steps)} hops, more than {MAX_HOPS}"
        for file, function in steps:
            if not os.path.exists(os.path.join(ROOT, file)) or not file:
                yield f"ARCHITECTURE.md: a hop names no file, or {file or 'none'} does not exist"
            elif not re.search(rf"\b(?:fn|macro_rules!) {function}\b", read(file)):
                yield f"ARCHITECTURE.md: {file} does not define {function}"


def glossary():
    """A glossary with too many terms."""
    terms = re.findall(r"^\| \*\*", read("docs/glossary.md"), re.MULTILINE)
    if not 1 <= len(terms) <= MAX_TERMS:
        yield f"docs/glossary.md: defines {len(terms)} terms, not 1 to {MAX_TERMS}"


TRANSLATIONS = {"README.zh-CN.md": "README.md", "docs/zh-CN/getting-started.md": "docs/getting-started.md", "docs/zh-CN/amd.md": "docs/amd.md"}


def translations():
    """Translated pages whose commands or figures are not those of the original."""
    blocks = lambda text: re.findall(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL)
    figures = lambda text: re.findall(r"\d+\.\d+ (?:ms|it/s)", text)
    for page, original in TRANSLATIONS.items():
        translated, text = read(page), read(original)
        # A translation may end before the original.
        expected = blocks(text)[:len(blocks(translated))]
        if not expected or blocks(translated) != expected:
            yield f"{page}: the code blocks are not the first ones of {original}"
        if figures(translated) != figures(text)[:len(figures(translated))]:
            yield f"{page}: the figures are not those of {original}"
        commands = set(re.findall(r"`((?:xsched|scripts/|make|pip|cargo) ?[^`]*)`", translated)) - set(re.findall(r"`([^`]*)`", text))
        yield from (f"{page}: {original} does not have the command `{command}`" for command in sorted(commands))


def purposes():
    """Pages that do not begin with what the reader can do after them. The index describes each page."""
    for page in files("docs/*.md"):
        text = re.sub(r"<!--.*?-->", "", read(page), flags=re.DOTALL)
        begin = " ".join(text.split("\n\n")[1:4])
        if page != "docs/README.md" and "After this page you can" not in begin and "读完本页，你" not in begin:
            yield f"{page}: does not begin with what the reader can do after it"


def main():
    if sys.argv[1:2] == ["--installed"]:
        return check_installed(sys.argv[2])
    found = [line for path in files("*.md") for line in links(path)]
    found += [*translations(), *purposes(), *index(), *variables(), *messages(), *platform_messages(), *counts(), *hops(), *glossary(), *claims()]
    for line in found:
        print(line)
    if found:
        sys.exit(f"{len(found)} mistakes in the documentation")
    print(f"{len(files('*.md'))} pages: every link resolves")
    return None


if __name__ == "__main__":
    main()
