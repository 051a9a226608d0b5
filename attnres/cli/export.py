"""Export a Kimi K3 model: a GGUF file for llama.cpp, or a checkpoint in the published form.

    attnres export runs/chat --gguf chat.gguf
    attnres export runs/chat --gguf chat.gguf --chat-template chat/template.jinja
    attnres export runs/chat --checkpoint models/chat
    attnres export models/chat --gguf chat.gguf --type bf16

RUN_OR_MODEL is the folder of a run with --model.backbone kimi_k3, or of a Kimi K3 checkpoint. llama.cpp supports only
block with an even block_size, and residual. Its own llama-quantize makes narrower types than bf16.
Needs: pip install 'attnres[gguf]'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from attnres.cli._checks import check_installed, check_new_file
from attnres.cli._tables import Output, print_line
from attnres.cli._terminal import working
from attnres.errors import UsageError

Kind = Literal["f32", "bf16", "f16"]


def command(
    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")],
    gguf: Path | None = None,
    type: Kind = "f32",
    checkpoint: Path | None = None,
    chat_template: Path | None = None,
    best: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Export.

    Args:
        model: The folder of a run, or of a Kimi K3 checkpoint.
        gguf: A new file for llama.cpp.
        type: Of the file's matrices; f32 gives the same logits, the others take half the room.
        checkpoint: A new folder for the published form: sharded safetensors with Kimi K3's names.
        chat_template: A Jinja file that turns messages into a prompt, for either; a checkpoint's own, if it has one,
            is taken without this.
        best: Use the run's checkpoint of lowest validation loss instead of the newest.
    """
    if gguf is None and checkpoint is None:
        raise UsageError("there is nothing to write; give --gguf FILE or --checkpoint FOLDER")
    if gguf is None and type != "f32":
        raise UsageError(f"--type {type} is of the file of --gguf; give that, or leave --type out")
    check_installed("export", "gguf", "gguf", "transformers")
    from attnres.kimi_k3.export import open_model, own_template, write_published
    from attnres.kimi_k3.gguf import write_gguf

    check_new_file("--gguf", gguf)
    if checkpoint is not None and checkpoint.exists():
        raise UsageError(f"--checkpoint {checkpoint} exists; give a new folder")
    template = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    console = Output()
    with working(console, "opening the model"):
        made, tokenizer = open_model(model, best)
        template = own_template(model) if template is None else template
    if checkpoint is not None:
        write_published(made, checkpoint, tokenizer, template)
        print_line(console, f"{checkpoint}: {made.num_parameters():,} parameters in Kimi K3's form")
    if gguf is not None:
        write_gguf(made, gguf, tokenizer, type, template)
        lacks = ""
        if tokenizer is None:
            lacks = f"; {model} has no tokenizer, so llama.cpp takes and gives token ids alone"
        elif template is None:
            lacks = "; no template for chats: --chat-template FILE gives one"
        print_line(console, f"{gguf}: {type}, {gguf.stat().st_size / 1e6:.2f} MB{lacks}")
    return 0
