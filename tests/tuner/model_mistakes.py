"""Mistakes in a model's own code and in what a search file says of the model, which show when it is built."""

from __future__ import annotations

from error_cases import SEARCH, Mistake

_IMPORTS = "import torch\nfrom torch import nn\n"
_MODEL = """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(4, 4)

    def forward(self, x):
        return self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return LOSS


def build():
    return Model()


def make_batch(micro_batch_size):
    return BATCH
"""
_BATCH = "{'x': torch.randn(micro_batch_size, 4)}"


def code(*, loss: str = "x.sum()", batch: str = _BATCH, old: str = "", new: str = "") -> str:
    """A model and its batches, with one thing replaced."""
    text = _IMPORTS + _MODEL.replace("LOSS", loss).replace("BATCH", batch)
    assert old in text, old
    return text.replace(old, new, 1) if old else text


def mistake(
    name: str, parts: str, python: str | None = None, *, entries: str = "", factory: str = "model.py:build"
) -> Mistake:
    """Seen by `tune plan`, which builds the model without data."""
    search = SEARCH.replace("model.py:build", factory).replace("sequence_length: 16", "factory: model.py:make_batch")
    files: dict[str, str | bytes] = {"search.yaml": search + entries, "model.py": code() if python is None else python}
    return Mistake(name, "plan search.yaml", parts, files)


IN_MODELS = (
    mistake("syntax", "batch.factory | is model.py:make_batch | model.py:1: SyntaxError", "def build(:\n"),
    mistake(
        "import", "batch.factory | is model.py:make_batch | model.py:1: | No module named 'nowhere'", "import nowhere\n"
    ),
    mistake("no function", "model.factory | model.py has no biuld | did you mean build?", factory="model.py:biuld"),
    mistake(
        "an exception",
        "model.factory | model.py:24 | ZeroDivisionError",
        code(old="return Model()", new="return 1 / 0"),
    ),
    mistake(
        "a class",
        "model.factory | returned a type | must return a torch.nn.Module",
        code(old="Model()\n\n\ndef make", new="Model\n\n\ndef make"),
    ),
    mistake(
        "an end", "exit code 3 | run the model once alone", code(old="return Model()", new="import os; os._exit(3)")
    ),
    mistake("a batch that is a list", "batch.factory | list | dict", code(batch="[1]")),
    mistake(
        "batches of one size",
        "batches do not follow the micro-batch size | of 2 and of 4 samples both hold | (7, 4) | batch.factory",
        code(batch="{'x': torch.randn(7, 4)}"),
    ),
    mistake(
        "a wrong batch",
        "a batch of 2 | TypeError | unexpected keyword argument 'y'",
        code(batch=_BATCH.replace("'x'", "'y'")),
    ),
    mistake("no scalar", "loss | scalar", code(loss="x")),
    mistake("no loss", "loss", code(loss="{'logits': x}")),
    mistake(
        "in a block",
        "a batch of 2 | RuntimeError | in blocks.0.mlp; | at model.py:9",
        code(old="return self.mlp(x)", new="return self.mlp(x[0, :2])"),
    ),
    mistake(
        "blocks",
        "placement.blocks names blocsk, which Model does not have | did you mean blocks?",
        entries="placement: {blocks: [blocsk]}\n",
    ),
    mistake(
        "units",
        "placement.units names mpl as mlp | Block | does not have | did you mean mlp?",
        entries="placement: {blocks: [blocks], units: {mlp: mpl}}\n",
    ),
    mistake("optimizer", "optimizer.args | learning_rate", entries="optimizer: {args: {learning_rate: 1}}\n"),
    mistake("of transformers", "model.factory | huggingface:gpt3 | did you mean", factory="huggingface:gpt3"),
)
