"""What MkDocs does besides: pages made of the sources, and pages that lie outside of docs/."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]

#: Pages that are where those who look at the repository expect them.
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: Any) -> Files:
    """Add what is not in docs/."""
    there = {name: (ROOT / name).read_text(encoding="utf-8") for name in OUTSIDE}
    for page in sorted((ROOT / "benchmarks").glob("*/README.md")):
        there[page.relative_to(ROOT).as_posix()] = page.read_text(encoding="utf-8")
    for name, text in {**there, **_generated().pages()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as they are on the site: docs/ is its root, and files of code are only named."""
    name = page.file.src_uri
    deep = name.count("/")
    if name.startswith("benchmarks/"):
        markdown = markdown.replace("](../../docs/", "](../../")
    elif name in OUTSIDE:
        markdown = markdown.replace("](docs/", "](")
    elif not name.startswith("generated/"):
        # One level further up than docs/ is the repository.
        markdown = markdown.replace(f"]({'../' * (deep + 1)}", f"]({'../' * deep}")
    # In a table GitHub wants a bar in code escaped; here it would show the backslash.
    markdown = re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), markdown)
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)*(?:examples|configs)/[^)]*\)", r"\1", markdown)


def _generated() -> Any:
    path = ROOT / "docs" / "site" / "generated.py"
    sys.path.insert(0, str(ROOT))
    spec = importlib.util.spec_from_file_location("shardproof_docs_generated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
