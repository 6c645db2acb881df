"""What belongs beside the weights: configuration, tokenizer, licence. Copied along, and never weights."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

PATTERNS = (
    "*config*.json",  # config, generation_config, tokenizer_config, preprocessor_config, adapter_config, ...
    "tokenizer.*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*.json",
    "vocab*.txt",
    "merges.txt",
    "normalizer.json",
    "dict.txt",
    "bpe.codes",
    "*.tiktoken",
    "*.spm",
    "spiece.model",
    "sentencepiece*.model",
    "chat_template*",
    "modules.json",
    "*.py",  # the code of networks that bring their own; copied, never run
    "LICENSE*",
    "LICENCE*",
    "NOTICE*",
    "USE_POLICY*",
)
MODULES = "modules.json"
TEMPLATES = "additional_chat_templates"
LARGEST = 1 << 30  # bytes; no vocabulary is as large


def companions(folder: Path) -> list[str]:
    """The names, relative to ``folder``, of the files to copy along with its weights."""
    paths = [path for path in folder.iterdir() if _belongs(path)]
    for below in _subfolders(folder):
        if below.is_dir() and not below.is_symlink():
            paths += [path for path in below.iterdir() if _belongs(path) or path.suffix == ".jinja"]
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def copy_companions(names: list[str], source: Path, target: Path) -> None:
    """Copy the named files; links are followed, as the cache of the hub is made of them."""
    for name in names:
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, target / name)


def _belongs(path: Path) -> bool:
    return (
        any(fnmatch(path.name, pattern) for pattern in PATTERNS)
        and not path.name.endswith((".index.json", ".bin", ".safetensors", ".pt"))
        and path.is_file()
        and path.stat().st_size < LARGEST
    )


def _subfolders(folder: Path) -> list[Path]:
    """Those that sentence-transformers names in ``modules.json``, and the one for templates."""
    names = [TEMPLATES]
    if (folder / MODULES).is_file():
        modules = _modules(folder / MODULES)
        names += [name for name in modules if name and "/" not in name and "\\" not in name and name != ".."]
    return [folder / name for name in dict.fromkeys(names)]


def _modules(path: Path) -> list[str]:
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    modules = modules if isinstance(modules, list) else []
    return [str(module.get("path", "")) for module in modules if isinstance(module, dict)]
