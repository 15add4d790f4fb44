"""Checks that every code block of docs/adding-a-platform.md is part of the file that the line before the block names.

  [`platform/mod.rs`](../examples/toy-platform/platform/mod.rs):
  ```rust
  ...consecutive lines of that file...
  ```
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/adding-a-platform.md"
# A block may be indented, as part of a list.
BLOCK = re.compile(r"^([ ]*)```\w+\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\]\(\.\./([^)#]+)\):\s*$")


def mistakes(text):
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        named = FILE.search(text[:block.start()].rstrip())
        if not named:
            yield f"line {line}: the line before a code block ends with a link to the block's file and a colon"
            continue
        path, indent = ROOT / named[1], block[1]
        code = "".join(row.removeprefix(indent) for row in block[2].splitlines(keepends=True))
        if not path.is_file():
            yield f"line {line}: there is no file {named[1]}"
        elif "\n" + code not in "\n" + path.read_text():
            yield f"line {line}: {named[1]} does not contain these lines"


def main():
    text = PAGE.read_text()
    found = list(mistakes(text))
    blocks = len(BLOCK.findall(text))
    if text.count("```") != 2 * blocks or blocks < 6:
        found.append(f"{blocks} code blocks were recognized, of {text.count('```') / 2:g}")
    for mistake in found:
        print(f"{PAGE.relative_to(ROOT)}: {mistake}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
