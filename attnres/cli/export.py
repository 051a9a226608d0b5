"""Write a Kimi K3 model for others: a GGUF file for llama.cpp, or a checkpoint in the published form.

    attnres export runs/chat --gguf chat.gguf
    attnres export runs/chat --gguf chat-q8.gguf --type q8_0 --measure 4096
    attnres export runs/chat --gguf chat.gguf --chat-template chat/template.jinja
    attnres export runs/chat --checkpoint models/chat
    attnres export models/chat --gguf chat.gguf --type bf16

RUN_OR_MODEL is the folder of a run with --model.backbone kimi_k3, or of a Kimi K3 checkpoint. Of all connections
llama.cpp has block, with an even block_size, and residual; others are refused. Types beyond bf16 are made by llama.cpp,
which --measure runs, too: npm install --no-save @node-llama-cpp/linux-x64@3.22.1. Needs: pip install -e '.[gguf]'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from attnres.cli._checks import check_installed, check_new_file
from attnres.cli._tables import Output, print_line, print_table
from attnres.cli._terminal import working
from attnres.errors import UsageError

Kind = Literal["f32", "bf16", "f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"]


def command(
    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")],
    gguf: Path | None = None,
    type: Kind = "f32",
    checkpoint: Path | None = None,
    chat_template: Path | None = None,
    measure: int | None = None,
    best: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Export.

    Args:
        model: The folder of a run, or of a Kimi K3 checkpoint.
        gguf: A new file for llama.cpp.
        type: Of the file's matrices; f32 gives the same logits, the others take less room. Those with a k want sizes in
            multiples of 256: llama.cpp takes a larger type where they are not.
        checkpoint: A new folder for the published form: sharded safetensors with Kimi K3's names.
        chat_template: A Jinja file that turns messages into a prompt, for either; a checkpoint's own, if it has one,
            is taken without this.
        measure: Compare the file in llama.cpp with the model on so many tokens of the run's validation text.
        best: Use the run's checkpoint of lowest validation loss instead of the newest.
    """
    if gguf is None and checkpoint is None:
        raise UsageError("there is nothing to write; give --gguf FILE or --checkpoint FOLDER")
    if gguf is None and type != "f32":
        raise UsageError(f"--type {type} is of the file of --gguf; give that, or leave --type out")
    if measure is not None and gguf is None:
        raise UsageError("--measure compares the file of --gguf; give that, or leave --measure out")
    check_installed("export", "gguf", "gguf", "transformers")
    from attnres.kimi_k3.export import (
        agreement_table,
        compare_exported,
        open_model,
        own_template,
        validation_text,
        write_file,
        write_published,
    )
    from attnres.kimi_k3.llamacpp import QUANTISED, load_library

    check_new_file("--gguf", gguf)
    if checkpoint is not None and checkpoint.exists():
        raise UsageError(f"--checkpoint {checkpoint} exists; give a new folder")
    template = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    if type in QUANTISED or measure is not None:
        load_library()  # before the model is opened and written, which takes its time
    console = Output()
    with working(console, "opening the model"):
        run, made, tokenizer = open_model(model, best)
        template = own_template(model) if template is None else template
    if measure is not None and run is None:
        raise UsageError(f"--measure takes a run's validation text, and {model} is no run; leave it out")
    text = None if measure is None or run is None else validation_text(run, measure)
    if checkpoint is not None:
        write_published(made, checkpoint, tokenizer, template)
        print_line(console, f"{checkpoint}: {made.num_parameters():,} parameters in Kimi K3's form")
    if gguf is not None:
        write_file(made, gguf, type, tokenizer, template)
        lacks = ""
        if tokenizer is None:
            lacks = f"; {model} has no tokenizer, so llama.cpp takes and gives token ids alone"
        elif template is None:
            lacks = "; no template for chats: --chat-template FILE gives one"
        print_line(console, f"{gguf}: {type}, {gguf.stat().st_size / 1e6:.2f} MB{lacks}")
    if gguf is not None and text is not None:
        print_table(console, agreement_table(gguf, compare_exported(made, gguf, text)))
    return 0
