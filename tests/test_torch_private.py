"""Private names of torch: that they do what is relied on. With the rest of the suite these admit a newer torch.

Held by the tests of their users: single-level functions, the stack of interpreters, forward mode and constants of the
compiler (tests/ops), TorchDispatchMode (tests/model) and Muon's rate (tests/train).
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import torch
from torch import nn

from attnres import torch_private

ROOT = Path(__file__).parents[1]
MOVED = "torch has changed what torch_private.py describes"


def parameters_of(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_no_other_file_has_a_private_name():
    private = re.compile(
        r"^[^#\n]*?(torch(\.\w+)*\._[a-z]\w*|from torch\S* import .*\b_\w+|\._parameters\b|\._version\b)", re.M
    )
    for path in sorted((ROOT / "attnres").rglob("*.py")):
        found = [match[1] for match in private.finditer(path.read_text(encoding="utf-8")) if "aten._" not in match[1]]
        assert not found or path.name == "torch_private.py", f"{path.relative_to(ROOT)}: {found}"


def test_a_copy_with_other_parameters_leaves_the_module_its_own():
    norm = nn.RMSNorm(3)
    copied = torch_private.with_parameters(norm, {"weight": nn.Parameter(torch.full((3,), 2.0))})
    assert norm(torch.ones(3)).sum() < 4 < copied(torch.ones(3)).sum(), MOVED
    assert torch_private.parameters_of(norm)["weight"] is norm.weight, MOVED


def test_the_tested_version_is_admitted_and_the_next_is_not():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = [r for r in project["dependencies"] if r.startswith("torch")]
    match = re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", requirement)
    assert match
    lowest, beyond = map(int, match.groups())
    minor = int(torch.__version__.split(".")[1])
    assert lowest <= minor < beyond, "run these tests on that torch, then let pyproject.toml admit it"


def test_pipeline_stage_base():
    base = torch_private.PipelineStageBase
    overridden = {
        "_retrieve_recv_activations": ["self", "fwd_chunk_id"],
        "_retrieve_recv_grads": ["self", "bwd_chunk_id"],
        "_get_init_p2p_neighbors_ops": ["self"],
        "_create_grad_recv_info": ["self", "act_send_info"],
        "forward_one_chunk": ["self", "fwd_chunk_id", "args", "kwargs", "save_forward_output"],
        "backward_one_chunk": ["self", "bwd_chunk_id", "loss", "full_backward", "last_backward"],
        "backward_weight_one_chunk": ["self", "bwd_chunk_id", "last_backward"],
        "backward_maybe_with_nosync": ["self", "backward_type", "bwd_kwargs", "last_backward"],
    }
    assert {name: parameters_of(getattr(base, name)) for name in overridden} == overridden, MOVED
    assert hasattr(base, "_prepare_forward_infra") and hasattr(base, "_prepare_backward_infra"), MOVED
    source = inspect.getsource(base)
    states = ["_validate_fwd_outputs"] if "_validate_fwd_outputs" in source else ["_stage_meta", "_runtime_validate"]
    for state in (*states, "fwd_cache", "bwd_cache", "args_recv_info", "has_backward", "stage_index_to_group_rank"):
        assert f"self.{state}" in source, f"{MOVED}: {state}"


def test_grad_fn_or_grad_acc():
    leaf = torch.ones(2, requires_grad=True)
    made = leaf * 2
    assert torch_private.grad_fn_or_grad_acc(made) is made.grad_fn, MOVED
    assert torch_private.grad_fn_or_grad_acc(leaf).variable is leaf, MOVED


def test_own_parameters():
    module = nn.Module()
    module.query = nn.ParameterDict({"3": nn.Parameter(torch.ones(1))})
    module.map = nn.Linear(2, 2, bias=False)
    assert torch_private.own_parameters(module, "query")["3"] is module.query["3"], MOVED
    assert torch_private.own_parameters(module, "map").keys() == {"weight", "bias"}, MOVED


def test_calls_forward_alone():
    plain = nn.Linear(2, 2)
    assert torch_private.calls_forward_alone(plain)
    for hook in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        handle = getattr(plain, f"register_{hook}")(lambda *_: None)
        assert not torch_private.calls_forward_alone(plain), MOVED
        handle.remove()
        assert torch_private.calls_forward_alone(plain)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not torch_private.calls_forward_alone(plain), MOVED
    handle.remove()
    plain.forward = plain.forward  # as accelerate does
    assert not torch_private.calls_forward_alone(plain)


def test_times_changed():
    x = torch.zeros(2)
    before = torch_private.times_changed([x, x.view(2)])
    x.detach().add_(1)
    assert torch_private.times_changed([x, x.view(2)]) == before + 2, MOVED
    assert torch_private.times_changed([x]) == torch_private.times_changed([x.detach()]) > 0, MOVED
    assert torch_private.times_changed([]) == 0
    with torch.inference_mode():
        made_here = torch.zeros(2)
        assert torch_private.times_changed([made_here.add_(1)]) == 0
        x.add_(1)
        assert torch_private.times_changed([made_here, x]) == before // 2 + 2, MOVED
    assert torch_private.times_changed([x, made_here]) == before // 2 + 2, MOVED
