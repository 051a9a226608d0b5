"""What README promises, in its order, and the test that holds it: no promise is lost with its test."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent

HELD = {
    "the code of README and of the guides runs": "docs/test_examples.py::test_",
    "depth attention is the paper's": "ops/test_depth_attention.py::test_it_is_what_another_package_computes",
    "a module of one site": "ops/test_depth_attention.py::test_the_module_of_one_site_is_the_operator",
    "a GPU's kernels": "ops/test_triton.py::test_",
    "every connection and option, compiled, split and in pipelines": "connections/test_every_connection.py::test_",
    "every connection has its matrix": "connections/test_every_connection.py::test_the_matrix_rebuilds",
    "two-phase reads": "ops/test_two_phases.py::test_equals_site_by_site",
    "groups for an optimizer": "connections/test_groups.py::test_",
    "a rule of one's own is checked": "connections/test_own_rules.py::test_attnres_check",
    "another connection's state is refused": "connections/test_state.py::test_the_state_of_another_connection",
    "semiseparable ranks": "analysis/test_rank.py::test_streams_bound_the_semiseparable_rank",
    "depth sinks": "analysis/test_depth_profile.py::test_sinks",
    "what depth reads can be changed": "analysis/test_models_under_changes.py::test_the_model_is_as_before",
    "attach starts as it says, and is saved": "hf/test_attach.py::test_every_connection_starts_as_it_says_and_is_saved",
    "convert loses nothing": "cli/test_convert.py::test_convert",
    "no checkpoint becomes another model without a word": "hf/test_saved_folders.py::test_a_model_around_an_attached",
    "PEFT, and an adapter of another connection": "hf/test_transformers_features.py::test_peft_lora",
    "generate and the cache of transformers": "hf/test_attach.py::test_",
    "attached models in vLLM": "engines/test_vllm.py::test_vllm_draws_what_transformers_draws",
    "engines that load by themselves": "hf/test_engine_contract.py::test_",
    "train, and its record": "cli/test_train.py::test_train",
    "a run that was stopped goes on bit-equal": "train/test_loop.py::test_stop_and_go_on_is_bit_equal",
    "a crash at any write goes on to the same bits": "train/test_checkpoint.py::test_crash_at_many_writes",
    "a run begins with another's weights": "train/test_start.py::test_nothing_is_lost_by_another_connection",
    "another run's folder is left alone": "cli/test_train.py::test_a_connections_file_is_found_from_every_folder",
    "generate": "cli/test_generate_and_save.py::test_generate_reads_standard_input",
    "compare, its record and its page": "cli/test_compare.py::test_a_comparison_leaves_tables_a_record",
    "ablate, its record and its page": "cli/test_ablate.py::test_the_record_holds_every_run",
    "scaling, its points and its table": "cli/test_scaling.py::test_a_sweep_leaves_points",
    "fit of points of one's own": "cli/test_scaling.py::test_the_papers_curves_from_a_file",
    "dynamics, from runs to its page": "lab/test_dynamics.py::test_from_runs_to_record",
    "report draws the committed records": "docs/test_numbers.py::test_every_record_has_its_section_of_tables",
    "cost has the paper's sums": "analysis/test_cost.py::test_the_command_prints_the_paper",
    "lm-eval's tasks, beside a twin": "cli/test_eval.py::test_a_run_beside_its_twin",
    "the page of look in a browser": "look/test_page.py::test_",
    "every command and public name": "test_public_interface.py::test_",
    "Kimi Linear as in the paper": "recipes/test_recipes.py::test_the_papers_48b",
    "Kimi Linear, with Muon and WSD": "recipes/test_recipes.py::test_the_small_kimi_linear_trains",
    "K3 is exported and comes back": "kimi_k3/test_export.py::test_a_checkpoint_comes_back",
    "K3 in llama.cpp gives the same logits": "kimi_k3/test_gguf.py::test_llama_cpp_computes_the_same",
    "K3 in MLX-LM gives the same logits": "kimi_k3/test_mlx.py::test_mlx_computes_the_same",
    "FSDP2, replicas and pipelines train as one process": "train/test_distributed.py::test_every_layout_trains",
    "every connection's gradients through a pipeline": "parallel/test_pipeline.py::test_every_gradient_is_that_of_one",
    "the cross-stage cache sends each block once": "parallel/test_pipeline_wire.py::test_",
    "torchtitan's own trainer": "torchtitan/test_layouts.py::test_every_layout_trains_as_one_process",
}


def test_what_readme_promises_is_held_by_a_test():
    for what, place in HELD.items():
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.FunctionDef) and node.name.startswith(name) for node in tree.body), what
