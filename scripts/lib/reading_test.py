"""Selects paragraphs of an earlier commit, and finds those that stand in their place in the working tree.

A paragraph is one of a document, or of a documentation comment (`///`). The file is found through git's renames. In the
file, the place is found by the declaration that a comment belongs to, by the position, and by the words. A paragraph
whose file is gone is searched for in all files.
"""

import argparse
import difflib
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

COUNT = 10
WORDS = range(25, 81)
# Below this share of common words, the paragraph of the same file is not the same one.
SIMILARITY_MIN = 0.25
DOCUMENTS = re.compile(r"^(docs/.*|README|SECURITY|CONTRIBUTING)\.md$")
SOURCES = re.compile(r"^Sources/.*\.swift$")


@dataclass
class Paragraph:
    path: str
    line: int
    # From 0 to 1 in the file.
    position: float
    # The declaration after a comment, or the heading before a paragraph of a document.
    anchor: str
    text: str

    @property
    def words(self):
        return re.findall(r"[\w'`./-]+", self.text.lower())


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def is_prose(path):
    return bool(DOCUMENTS.match(path) or SOURCES.match(path)) and "/Generated/" not in path


def paragraphs(path, text):
    lines = text.split("\n")
    read = comments if path.endswith(".swift") else blocks
    return [
        Paragraph(path, line + 1, line / max(len(lines), 1), anchor, " ".join(part.split()))
        for line, anchor, part in read(lines)
    ]


def blocks(lines):
    """The paragraphs and the items of lists of a document; no tables, headings or code."""
    found, current, start, heading, fenced = [], [], 0, "", False
    for number, line in enumerate(lines + [""]):
        if line.startswith("```"):
            fenced = not fenced
            line = ""
        is_item = re.match(r"^\s{0,3}([-*]|\d+\.) ", line)
        is_other = fenced or not line.strip() or line[0] in "|#" or line.startswith("    ") or line.startswith("![")
        if (is_other or is_item) and current:
            found.append((start, heading, " ".join(current)))
            current = []
        if line.startswith("#"):
            heading = line.strip("# ")
        if not is_other:
            if not current:
                start = number
            current.append(line)
    return found


def comments(lines):
    """The paragraphs of documentation comments, without lists of parameters."""
    found, pending, current, start, fenced = [], [], [], 0, False

    def close():
        if current and not current[0].startswith(("- ", "|")):
            pending.append((start, " ".join(current)))
        current.clear()

    for number, line in enumerate(lines):
        code = line.strip()
        if code.startswith("///"):
            text = code[3:].strip()
            if text.startswith("```"):
                fenced = not fenced
                text = ""
            if not text or text.startswith(("- ", "|")):
                close()
            if text and not fenced:
                if not current:
                    start = number
                current.append(text)
        elif pending or current:
            close()
            if code.startswith("@"):
                continue
            found += [(at, declaration(code), part) for at, part in pending]
            pending.clear()
    return found


def declaration(code):
    """`func name` of a line of code."""
    match = re.search(r"\b(func|init|var|let|case|struct|class|enum|protocol|actor|extension|typealias)\b[ ?(]*(\w*)", code)
    return " ".join(match.groups()) if match else code


def score(old, new):
    """How well a paragraph stands in the place of another; the words count most."""
    similarity = difflib.SequenceMatcher(None, old.words, new.words).ratio()
    place = 1 - abs(old.position - new.position)
    same = 1.0 if old.anchor and old.anchor == new.anchor else 0.0
    return similarity + 0.3 * place + 0.6 * same, similarity, same


def after(old, path, today):
    """The paragraph of today, and a word on how it was found; None if there is none."""
    own = [(score(old, new), new) for new in today.get(path or "", [])]
    if own:
        (_, similarity, same), best = max(own, key=lambda entry: entry[0][0])
        if similarity >= SIMILARITY_MIN or same:
            return best, "in the same file"
    every = [(score(old, new)[1], new) for found in today.values() for new in found]
    similarity, best = max(every, key=lambda entry: entry[0])
    if similarity >= 2 * SIMILARITY_MIN:
        return best, "in another file"
    return None, "nothing stands in its place"


def main():
    parser = argparse.ArgumentParser(prog="scripts/reading-test")
    parser.add_argument("seed", type=int)
    parser.add_argument("commit")
    options = parser.parse_args()
    git("merge-base", "--is-ancestor", options.commit, "HEAD")

    names = git("ls-tree", "-r", "--name-only", options.commit).splitlines()
    before = []
    for path in sorted(filter(is_prose, names)):
        before += paragraphs(path, git("show", f"{options.commit}:{path}"))
    chosen = random.Random(options.seed).sample([one for one in before if len(one.words) in WORDS], COUNT)

    moved = {}
    for line in git("diff", "-M30%", "-l0", "--name-status", options.commit).splitlines():
        status, *paths = line.split("\t")
        moved[paths[0]] = None if status == "D" else paths[-1]
    known = git("ls-files").splitlines()
    today = {
        path: paragraphs(path, Path(path).read_text(encoding="utf-8"))
        for path in known
        if is_prose(path) and Path(path).is_file()
    }

    print(f"# Reading test: seed {options.seed}, commit {options.commit}")
    for number, old in enumerate(chosen, 1):
        new, how = after(old, moved.get(old.path, old.path), today)
        print(f"\n## {number}. {old.path}:{old.line}\n\nBefore:\n\n> {old.text}\n")
        print(f"After, {how}: {new.path}:{new.line}\n\n> {new.text}" if new else f"After: {how}.")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"git {' '.join(error.cmd[1:3])}: {error.stderr.strip() or 'the commit is no ancestor'}")
