"""Each private name of torch: that it is there, and that it does what is relied on. These admit a newer torch."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
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


def test_single_level_function_and_its_switch():
    class Double(torch_private.SingleLevelFunction):
        @staticmethod
        def forward(ctx, x):
            assert not torch.is_grad_enabled(), MOVED
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 3 * gradient  # not the derivative: seen to be ours

    x = torch.ones(2, requires_grad=True)
    with torch_private.enable_single_level_autograd_function():
        Double.apply(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3], MOVED


def test_interpreter_stack_and_transform_type():
    seen = []

    def look(x):
        seen.append([level.key() for level in torch_private.interpreter_stack() or ()])
        return x.sum()

    look(torch.ones(1))
    torch.func.grad(look)(torch.ones(1))
    torch.func.grad(lambda x: torch.func.grad(look)(x).sum())(torch.ones(1))
    grad = torch_private.TransformType.Grad
    assert seen == [[], [grad], [grad, grad]], MOVED


def test_torch_dispatch_mode():
    class Count(torch_private.TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with Count() as count:
        torch.ones(2, device="meta") + 1
    assert count.calls == 2, MOVED


def test_adjust_lr():
    assert torch_private.adjust_lr(0.1, "match_rms_adamw", torch.Size((4, 9))) == pytest.approx(0.1 * 0.2 * 3), MOVED


def test_pipeline_stage_base():
    base = torch_private.PipelineStageBase
    overridden = {
        "_retrieve_recv_activations": ["self", "fwd_chunk_id"],
        "_retrieve_recv_grads": ["self", "bwd_chunk_id"],
        "_resolve_peer_global_rank": ["self", "stage_idx"],
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
    for state in ("_stage_meta", "_runtime_validate", "fwd_cache", "bwd_cache", "args_recv_info", "has_backward"):
        assert f"self.{state}" in source, f"{MOVED}: {state}"


def test_grad_fn_or_grad_acc():
    leaf = torch.ones(2, requires_grad=True)
    made = leaf * 2
    assert torch_private.grad_fn_or_grad_acc(made) is made.grad_fn, MOVED
    assert torch_private.grad_fn_or_grad_acc(leaf).variable is leaf, MOVED


def test_forward_mode_is_seen():
    x = torch.ones(2)
    assert not torch_private.in_forward_mode() and not torch_private.in_forward_mode(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        assert torch_private.in_forward_mode() and torch_private.in_forward_mode(x, dual), MOVED
        assert not torch_private.in_forward_mode(x), MOVED
    assert not torch_private.in_forward_mode()


def test_constant_to_the_compiler():
    calls = []

    @torch_private.constant_to_compiler
    def constant() -> int:
        calls.append(len(calls))  # would break the graph, or be traced, if it were looked into
        return 2

    compiled = torch.compile(lambda x: x * constant(), backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2 and calls == [0], MOVED
    compiled(torch.ones(1))
    assert calls == [0], MOVED


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
