"""The workload of transport on text: small networks of transformers, independently trained, and A's fine-tunes.

Four families, A of width 64 and B of width 96, four heads, one tokenizer, trained apart on disjoint halves of the texts
(`transport_texts.py`):

- ``encoder`` (BERT): fills gaps in captions and questions; A is fine-tuned with a head on each classification. A
  *foreign* B read its texts in a cipher, so that a verdict has to be "do not";
- ``decoder`` (GPT-2) and ``rotary`` (Llama, heads of equal size): continue English captions; A is fine-tuned on
  questions, and on German captions. The head is no copy of the table of tokens, so that it can be fitted alone;
- ``writer`` (T5): repairs captions with gaps; A is fine-tuned to write headlines.

Trained networks are kept in ``benchmarks/.cache``, named by all that they depend on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from interbasin.extras import import_extra
from transport_texts import (
    CLASSES,
    END,
    MASK,
    PAD,
    SPECIAL,
    START,
    Batch,
    Labelled,
    Pieces,
    Side,
    Texts,
    headline,
    make_texts,
    read_texts,
    train_pieces,
)

CACHE = Path(__file__).parent / ".cache"
FAMILIES = ("encoder", "decoder", "rotary", "writer")
TASKS = {
    "encoder": ("questions", "subjects"),
    "decoder": ("questions", "german"),
    "rotary": ("questions",),
    "writer": ("headlines",),
}
HEADS, INNER = 4, 4  # of attention; the hidden width over the width
PRETRAIN_RATE, FINETUNE_RATE = 3e-3, 1e-3  # peaks
GAPS = {"encoder": 0.2, "writer": 0.3}  # share of the pieces
BATCH = {"encoder": 32, "decoder": 32, "rotary": 32, "writer": 20}  # inputs in a batch of calibration
GENERIC_BATCHES = 20

transformers = import_extra("transformers", "The language benchmark", "hf")


class Classifier(nn.Module):
    """An encoder with a linear head on the mean of its last states."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, batch: Batch) -> Tensor:
        return self.head(pooled(self.encoder, batch))


def pooled(encoder: nn.Module, batch: Batch) -> Tensor:
    """The mean of an encoder's last states over the pieces that are no padding, a row per text."""
    states = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    counts = batch["attention_mask"][..., None].to(states.dtype)
    return (states * counts).sum(1) / counts.sum(1)


@dataclass(frozen=True)
class Workload:
    """Which texts, how large the networks are, and how long they are trained.

    Attributes:
        name: In the names of files.
        pieces_size: How many word pieces there are.
        length: Of a row, in pieces.
        widths: Of A and B.
        depth: Blocks; a writer has as many in its decoder.
        steps: Of pre-training and of fine-tuning, by family.
        train_batch: Rows in a step.
        tests: Rows of a test at most.
        validation: Rows of B's half that no batch of calibration holds.
    """

    name: str
    pieces_size: int
    length: int
    widths: tuple[int, int]
    depth: int
    steps: dict[str, tuple[int, int]]
    train_batch: int
    tests: int
    validation: int

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def texts(self) -> Texts:
        if self.name == "quick":
            return make_texts()
        folder = data_folder()
        assert folder is not None, "the full workload needs INTERBASIN_DATA"
        return read_texts(folder)

    @cached_property
    def pieces(self) -> Pieces:
        path = CACHE / f"language-{self.name}-{self.pieces_size}.json"
        return train_pieces(self.texts.lines, self.pieces_size, self.length, path)

    # ------------------------------------------------------------------ networks

    def new_network(self, family: str, width: int, seed: int) -> nn.Module:
        """A network with weights drawn from the seed."""
        size, length, depth = self.pieces.size, self.length, self.depth
        ends = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if family == "encoder":
                config = transformers.BertConfig(
                    vocab_size=size,
                    hidden_size=width,
                    num_hidden_layers=depth,
                    num_attention_heads=HEADS,
                    intermediate_size=INNER * width,
                    max_position_embeddings=length,
                    type_vocab_size=1,
                    attn_implementation="eager",
                    **ends,
                )
                return transformers.BertForMaskedLM(config)
            if family == "decoder":
                config = transformers.GPT2Config(
                    vocab_size=size,
                    n_positions=length,
                    n_embd=width,
                    n_layer=depth,
                    n_head=HEADS,
                    n_inner=INNER * width,
                    resid_pdrop=0.0,
                    embd_pdrop=0.0,
                    attn_pdrop=0.0,
                    tie_word_embeddings=False,
                    use_cache=False,
                    attn_implementation="eager",
                    **ends,
                )
                return transformers.GPT2LMHeadModel(config)
            if family == "rotary":
                config = transformers.LlamaConfig(
                    vocab_size=size,
                    hidden_size=width,
                    num_hidden_layers=depth,
                    num_attention_heads=HEADS,
                    num_key_value_heads=HEADS,
                    head_dim=16,
                    intermediate_size=3 * width,
                    max_position_embeddings=length,
                    tie_word_embeddings=False,
                    use_cache=False,
                    attn_implementation="eager",
                    **ends,
                )
                return transformers.LlamaForCausalLM(config)
            config = transformers.T5Config(
                vocab_size=size,
                d_model=width,
                d_kv=width // HEADS,
                d_ff=2 * width,
                num_layers=depth - 1,
                num_decoder_layers=depth - 1,
                num_heads=HEADS,
                dropout_rate=0.0,
                initializer_factor=0.1,
                feed_forward_proj="gated-gelu",
                tie_word_embeddings=False,  # transformers 5 ties them all the same, but does not scale what they read
                use_cache=False,
                decoder_start_token_id=PAD,
                pad_token_id=PAD,
                eos_token_id=END,
            )
            return transformers.T5ForConditionalGeneration(config)

    def base(self, family: str, side: Side, seed: int) -> nn.Module:
        """The pre-trained network of a side; of an encoder without what fills gaps."""
        number = 1_000 * seed + 100 * FAMILIES.index(family) + (side == "B")
        network = self.new_network(family, self._width(side), number)
        kept = network.bert if family == "encoder" else network

        def make() -> None:
            loss = self._pretraining(family, side)
            self.train(network, loss, self.steps[family][0], PRETRAIN_RATE, number + 10)

        return self._cached(kept, f"{family}-{side}-s{seed}", family, make)

    def foreign(self, seed: int) -> nn.Module:
        """An encoder of B's shape that read B's texts in a cipher: every piece stands for another, always the same one.

        It has learnt as much as B, about the same texts, and nothing about these words.
        """
        number = 1_000 * seed + 50
        network = self.new_network("encoder", self._width("B"), number)

        def make() -> None:
            order = torch.randperm(self.pieces.size - len(SPECIAL), generator=torch.Generator().manual_seed(number))
            cipher = torch.cat([torch.arange(len(SPECIAL)), len(SPECIAL) + order])
            texts = self._read_by_encoders("B")
            loss = self._filling(texts | {"input_ids": cipher[texts["input_ids"]]})
            self.train(network, loss, self.steps["encoder"][0], PRETRAIN_RATE, number + 10)

        return self._cached(network.bert, f"encoder-cipher-s{seed}", "encoder", make)

    def tuned(self, family: str, side: Side, task: str, seed: int) -> nn.Module:
        """The network of a side, fine-tuned on a task; an encoder as a `Classifier`."""
        number = 1_000 * seed + 100 * FAMILIES.index(family) + 20 + (side == "B")
        network = self.new_network(family, self._width(side), number)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            whole = Classifier(network.bert, len(CLASSES)) if family == "encoder" else network

        def make() -> None:
            start = whole.encoder if family == "encoder" else whole
            start.load_state_dict(self.base(family, side, seed).state_dict())
            loss = self._finetuning(family, side, task)
            self.train(whole, loss, self.steps[family][1], FINETUNE_RATE, number)

        return self._cached(whole, f"{family}-{side}-{task}-s{seed}", family, make)

    def _width(self, side: Side) -> int:
        return self.widths[side == "B"]

    def train(
        self,
        network: nn.Module,
        loss: Callable[[nn.Module, torch.Generator], Tensor],
        steps: int,
        peak: float,
        seed: int,
    ) -> None:
        """Train in place: AdamW, one cycle."""
        generator = torch.Generator().manual_seed(seed)
        network.requires_grad_(True).train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=peak)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # dropout
            for step in range(steps):
                value = loss(network, generator)
                optimizer.zero_grad()
                value.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                if step % 200 == 0 or step == steps - 1:
                    print(f"  step {step} of {steps}: loss {float(value.detach()):.3f}", flush=True)

    def _cached(self, network: nn.Module, name: str, family: str, make: Callable[[], object]) -> nn.Module:
        """The network of that name from the cache, or made and kept there."""
        shape = "-".join(map(str, (*self.steps[family], *self.widths, self.depth)))
        vocabulary = hashlib.sha256(self.pieces.tokenizer.to_str().encode()).hexdigest()[:8]
        path = CACHE / f"language-{self.name}-{vocabulary}-{shape}-{name}.safetensors"
        if path.exists():
            network.load_state_dict(load_file(path))
        else:
            print(f"training {path.stem}", flush=True)
            make()
            CACHE.mkdir(exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            save_file({key: tensor.clone().contiguous() for key, tensor in network.state_dict().items()}, partial)
            os.replace(partial, path)
        return network.eval().requires_grad_(False)

    # ------------------------------------------------------------------ what is learnt

    def _pretraining(self, family: str, side: Side) -> Callable[[nn.Module, torch.Generator], Tensor]:
        captions = self.texts.captions[side]
        if family in ("decoder", "rotary"):
            return self._continuing(self.pieces.packed(captions))
        if family == "encoder":
            return self._filling(self._read_by_encoders(side))
        return self._writing(self.pieces.padded(captions), self.pieces.answers(captions), GAPS["writer"])

    def _read_by_encoders(self, side: Side) -> Batch:
        return self.pieces.padded(self.texts.captions[side] + [text for text, _ in self.texts.questions[side]])

    def _finetuning(self, family: str, side: Side, task: str) -> Callable[[nn.Module, torch.Generator], Tensor]:
        if family == "encoder":
            return self._classifying(self.texts.labelled(task, side))
        if family == "writer":
            captions = self.texts.captions[side]
            return self._writing(self.pieces.padded(captions), self.pieces.answers([*map(headline, captions)]), 0.0)
        return self._continuing(self.pieces.packed(self.task_texts(task, side)))

    def task_texts(self, task: str, side: Side | None) -> list[str]:
        """What a decoder is to continue, of a side or of the test."""
        if task == "german":
            return self.texts.test_german if side is None else self.texts.german[side]
        if task == "captions":
            return self.texts.test_captions if side is None else self.texts.captions[side]
        return [text for text, _ in self.texts.labelled("questions", side)]

    def _continuing(self, rows: Tensor) -> Callable[[nn.Module, torch.Generator], Tensor]:
        def loss(network: nn.Module, generator: torch.Generator) -> Tensor:
            ids = rows[self._drawn(len(rows), generator)]
            logits = network(ids).logits[:, :-1]
            return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

        return loss

    def _filling(self, texts: Batch) -> Callable[[nn.Module, torch.Generator], Tensor]:
        def loss(network: nn.Module, generator: torch.Generator) -> Tensor:
            drawn = self._drawn(len(texts["input_ids"]), generator)
            ids, mask = texts["input_ids"][drawn], texts["attention_mask"][drawn]
            gaps = _gaps(ids, GAPS["encoder"], generator)
            states = network.bert(input_ids=ids.masked_fill(gaps, MASK), attention_mask=mask).last_hidden_state
            return cross_entropy(network.cls(states[gaps]), ids[gaps])

        return loss

    def _classifying(self, items: Labelled) -> Callable[[nn.Module, torch.Generator], Tensor]:
        texts, labels = self.pieces.padded([text for text, _ in items]), torch.tensor([label for _, label in items])

        def loss(network: nn.Module, generator: torch.Generator) -> Tensor:
            drawn = self._drawn(len(labels), generator)
            return cross_entropy(network(cut(texts, drawn)), labels[drawn])

        return loss

    def _writing(self, texts: Batch, answers: Batch, gaps: float) -> Callable[[nn.Module, torch.Generator], Tensor]:
        def loss(network: nn.Module, generator: torch.Generator) -> Tensor:
            drawn = self._drawn(len(texts["input_ids"]), generator)
            batch, aims = cut(texts, drawn), cut(answers, drawn)
            if gaps:
                ids = batch["input_ids"]
                batch["input_ids"] = ids.masked_fill(_gaps(ids, gaps, generator), MASK)
            labels = aims.pop("labels")
            logits = network(**batch, **aims).logits
            return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)

        return loss

    def _drawn(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(count, (self.train_batch,), generator=generator)


def _gaps(ids: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Some of the pieces that are no special ones."""
    return (torch.rand(ids.shape, generator=generator) < share) & (ids > MASK)


def cut(batch: Batch, rows: Tensor | slice) -> Batch:
    return {name: tensor[rows] for name, tensor in batch.items()}


def data_folder() -> Path | None:
    """Where the texts lie, or None if nobody says so."""
    named = os.environ.get("INTERBASIN_DATA")
    return Path(named) if named else None


FULL = Workload(
    "full",
    1_500,
    24,
    (64, 96),
    3,
    {"encoder": (1_200, 300), "decoder": (1_200, 400), "rotary": (800, 300), "writer": (1_200, 400)},
    32,
    500,
    400,
)
QUICK = Workload("quick", 150, 12, (16, 24), 2, dict.fromkeys(FAMILIES, (100, 60)), 32, 60, 40)


@cache
def workload_of(name: str) -> Workload:
    return QUICK if name == "quick" else FULL
