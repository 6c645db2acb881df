"""The texts of the language benchmark of transport, their pieces of words, and the tasks made of them.

Multi30k captions (English and German) and TREC questions lie in the folder that INTERBASIN_DATA names. A and B see
disjoint parts of each. The quick form has captions and questions made here from a short list of words.

The tasks: ``questions``, the six classes of TREC; ``subjects``, which of six nouns was taken out of a caption;
``headlines``, the first four words of a caption that say something.
"""

from __future__ import annotations

import gzip
import random
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

Side = Literal["A", "B"]
Labelled = list[tuple[str, int]]
Batch = dict[str, Tensor]

PAD, UNKNOWN, START, END, MASK = range(5)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SUBJECTS = ("man", "woman", "boy", "girl", "dog", "people")
HEADLINE_WORDS = 4
# Words that say little: a headline leaves them out.
EMPTY_WORDS = [
    "a",
    "an",
    "the",
    "is",
    "are",
    "was",
    "were",
    "be",
    "being",
    "been",
    "in",
    "on",
    "at",
    "of",
    "to",
    "for",
    "from",
    "with",
    "by",
    "and",
    "or",
    "as",
    "it",
    "its",
    "his",
    "her",
    "their",
    "he",
    "she",
    "they",
    "this",
    "that",
    "there",
    "some",
    "while",
    "who",
    "which",
    "into",
    "onto",
    "over",
    "under",
    "up",
    "down",
    "out",
    "off",
    "near",
    "next",
    "through",
]


@dataclass(frozen=True)
class Texts:
    """What A and B learn from, and what is held back for the test.

    Attributes:
        captions, german, questions: Of each side.
        test_captions, test_german, test_questions: Of neither.
    """

    captions: dict[Side, list[str]]
    german: dict[Side, list[str]]
    questions: dict[Side, Labelled]
    test_captions: list[str]
    test_german: list[str]
    test_questions: Labelled
    most_of_a_subject: tuple[int, int] = (400, 150)  # for learning, and in the test

    @property
    def lines(self) -> Iterator[str]:
        """All that may be learnt from."""
        for side in ("A", "B"):
            yield from self.captions[side]
            yield from self.german[side]
            yield from (text for text, _ in self.questions[side])

    def labelled(self, task: str, side: Side | None) -> Labelled:
        """The items of a classification, of a side or of the test."""
        if task == "questions":
            return self.test_questions if side is None else self.questions[side]
        captions = self.test_captions if side is None else self.captions[side]
        return _take_out_subjects(captions, self.most_of_a_subject[side is None])


def _take_out_subjects(captions: Sequence[str], most: int) -> Labelled:
    """Captions that name one subject, once, with a gap in its place; so many of each subject at most."""
    found: Labelled = []
    counts: Counter[str] = Counter()
    for caption in captions:
        words = caption.lower().split()
        named = [word for word in words if word.strip(".,") in SUBJECTS]
        subject = named[0].strip(".,") if len(named) == 1 else None
        if subject is None or counts[subject] >= most:
            continue
        counts[subject] += 1
        gap = " ".join(SPECIAL[MASK] if word is named[0] else word for word in words)
        found.append((gap, SUBJECTS.index(subject)))
    return found


def headline(caption: str) -> str:
    """The first words of a caption that say something.

    >>> headline("A man in an orange hat starring at something.")
    'man orange hat starring'
    """
    words = "".join(letter if letter.isalnum() else " " for letter in caption.lower()).split()
    return " ".join([word for word in words if word not in EMPTY_WORDS][:HEADLINE_WORDS])


# ---------------------------------------------------------------------- where they come from

HALF, HELD = 13_500, 2_000  # captions of a side, and training captions of neither


def read_texts(folder: Path) -> Texts:
    """Multi30k and TREC."""

    def lines(name: str) -> list[str]:
        return gzip.decompress((folder / "text" / f"{name}.gz").read_bytes()).decode("utf-8").splitlines()

    english, german = lines("train.en"), lines("train.de")
    halves: dict[Side, slice] = {"A": slice(0, HALF), "B": slice(HALF, 2 * HALF)}
    archive = zipfile.ZipFile(folder / "text" / "trec-qc.zip")

    def questions(name: str) -> Labelled:
        rows = [line.split(" ", 1) for line in archive.read(f"qc/{name}.txt").decode("latin1").splitlines()]
        return [(text, CLASSES.index(label.split(":")[0])) for label, text in rows]

    asked = questions("train")
    random.Random(0).shuffle(asked)
    return Texts(
        {side: english[part] for side, part in halves.items()},
        {side: german[part] for side, part in halves.items()},
        {"A": asked[: len(asked) // 2], "B": asked[len(asked) // 2 :]},
        lines("test_2016_flickr.en") + english[2 * HALF : 2 * HALF + HELD],
        lines("test_2016_flickr.de") + german[2 * HALF : 2 * HALF + HELD],
        questions("test"),
    )


COLOURS = ("red", "blue", "green", "old", "young", "small", "tall", "black")
ACTIONS = ("runs", "sits", "plays", "jumps", "waits", "sleeps", "stands", "sings")
PLACES = ("park", "street", "house", "field", "river", "shop", "garden", "station")
ASKED = (("who", 3), ("where", 4), ("when", 5), ("why", 1), ("which animal", 2), ("what is short for", 0))


def make_texts(captions: int = 600, questions: int = 240) -> Texts:
    """Captions and questions of a few words, for the quick form: nothing is read."""
    draw = random.Random(0)

    def caption() -> str:
        place = f"in the {draw.choice(PLACES)}" if draw.random() < 0.5 else f"near a {draw.choice(PLACES)}"
        return f"a {draw.choice(COLOURS)} {draw.choice(SUBJECTS)} {draw.choice(ACTIONS)} {place} ."

    def question() -> tuple[str, int]:
        words, label = draw.choice(ASKED)
        return f"{words} {draw.choice(ACTIONS)} the {draw.choice(COLOURS)} {draw.choice(PLACES)} ?", label

    def turned(texts: list[str]) -> list[str]:
        return [" ".join(reversed(text.split())) for text in texts]

    parts = [[caption() for _ in range(captions)] for _ in range(3)]
    asked = [[question() for _ in range(questions)] for _ in range(3)]
    return Texts(
        {"A": parts[0], "B": parts[1]},
        {"A": turned(parts[0]), "B": turned(parts[1])},
        {"A": asked[0], "B": asked[1]},
        parts[2],
        turned(parts[2]),
        asked[2],
        (40, 20),
    )


# ---------------------------------------------------------------------- pieces of words


@dataclass(frozen=True)
class Pieces:
    """Texts as numbers: one tokenizer, which both networks share."""

    tokenizer: Tokenizer
    length: int = field(default=24)

    @property
    def size(self) -> int:
        return self.tokenizer.get_vocab_size()

    def padded(self, texts: Sequence[str]) -> Batch:
        """Texts with a start and an end, cut and padded to one length."""
        return self._padded([[START, *ids, END] for ids in self._ids(texts, self.length - 2)], self.length)

    def answers(self, texts: Sequence[str]) -> Batch:
        """Texts as an encoder-decoder is to write them: the pieces before each, and the pieces themselves."""
        rows = self._ids(texts, self.length - 1)
        before = self._padded([[PAD, *ids] for ids in rows], self.length)
        return {
            "decoder_input_ids": before["input_ids"],
            "decoder_attention_mask": before["attention_mask"],
            "labels": self._padded([[*ids, END] for ids in rows], self.length)["input_ids"],
        }

    def packed(self, texts: Sequence[str]) -> Tensor:
        """All texts one after the other, each with an end, cut into rows without padding."""
        stream = [piece for ids in self._ids(texts) for piece in (*ids, END)]
        rows = len(stream) // self.length
        return torch.tensor(stream[: rows * self.length]).reshape(rows, self.length)

    def texts(self, ids: Tensor) -> list[str]:
        """What a network wrote, up to its first end."""
        rows = [row[: row.index(END)] if END in row else row for row in ids.tolist()]
        return self.tokenizer.decode_batch(rows, skip_special_tokens=True)

    def _ids(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        return [found.ids[:most] for found in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def _padded(self, rows: list[list[int]], length: int) -> Batch:
        ids = torch.tensor([row + [PAD] * (length - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}


def train_pieces(lines: Iterator[str], size: int, length: int, path: Path) -> Pieces:
    """Word pieces learnt from the texts, or read from where they were kept."""
    if path.exists():
        return Pieces(Tokenizer.from_file(str(path)), length)
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    path.parent.mkdir(exist_ok=True)
    tokenizer.save(str(path))
    return Pieces(tokenizer, length)
