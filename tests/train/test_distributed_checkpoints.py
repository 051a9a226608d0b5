"""Checkpoints of several processes: the same files, for any number of others."""

import pytest
import torch
import torch.nn.functional as F

from attnres.errors import UsageError
from attnres.parallel.layout import Layout
from attnres.train import Interrupted
from attnres.train.folder import RunFolder
from attnres.train.loop import _train
from tests.train.conftest import results, steps_on_disk, stop_at, weights
from tests.train.many import contents, go, make_world


@pytest.mark.slow
def test_a_checkpoint_goes_from_layout_to_layout_bit_for_bit(make_config, ranks, pair, tmp_path):
    """4 processes -> 2 -> 1 -> 4: loading and saving again changes no bit, and training goes on."""
    config = make_config(batch_size=4, accumulate=4, steps=12, model={"layers": 2})
    many = Layout(pipeline=2, virtual=2, shard=2)
    first = ranks.run(go, config, many, 1, None, tmp_path / "four", 2, ranks=4)
    saved = contents(tmp_path / "four", 1)
    place = tmp_path / "four" / "step-00000001"
    others = {
        "two in a pipeline": lambda to: pair.run(go, config, Layout(pipeline=2, shard=1), 0, place, to, 1, ranks=2),
        "one": lambda to: [go(None, config, None, 0, place, to, 1)],
        "four shards": lambda to: ranks.run(go, config, Layout(shard=4), 0, place, to, 1, ranks=4),
    }
    for name, again in others.items():
        for losses, validation, _ in again(tmp_path / name):
            assert validation == pytest.approx(first[0][1], rel=1e-5)
            assert losses[0][0] == pytest.approx(first[0][0][1][0], rel=1e-5)
        loaded = contents(tmp_path / name, 1)
        names = {key for key in saved if not key.startswith("rng/")}
        assert {key for key in loaded if not key.startswith("rng/")} == names
        assert all(torch.equal(loaded[key], saved[key]) for key in names), name
    # The same layout goes on to the same bits.
    again = ranks.run(go, config, many, 2, place, tmp_path / "parts", ranks=4)
    assert [losses for losses, _, _ in again] == [losses[1:] for losses, _, _ in first]
    ranks.run(go, config, many, 3, None, tmp_path / "whole", ranks=4)
    whole, parts = contents(tmp_path / "whole", 3), contents(tmp_path / "parts", 3)
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def masked(_group, config, layout, steps, start=None, save=None):
    """The losses of some steps with dropout, behind a seed that no process chose."""
    torch.manual_seed(99)
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, output: (
            F.dropout(output, 0.5) if isinstance(module, torch.nn.Linear) and module.training else None
        )
    )
    try:
        return go(_group, config, layout, steps, start, save)[0]
    finally:
        hook.remove()


def test_masks_of_dropout_go_on_where_they_were(make_config, pair, tmp_path):
    config, layout = make_config(batch_size=4, accumulate=2, model={"layers": 1}), Layout(shard=2)
    whole = pair.run(masked, config, layout, 4, None, tmp_path / "whole", ranks=2)
    pair.run(masked, config, layout, 2, None, tmp_path / "begun", ranks=2)
    place = tmp_path / "begun" / "step-00000002"
    went_on = pair.run(masked, config, layout, 2, place, tmp_path / "on", ranks=2)
    assert went_on == [losses[2:] for losses in whole]
    whole, parts = contents(tmp_path / "whole", 4), contents(tmp_path / "on", 4)
    assert whole.keys() == parts.keys() and all(torch.equal(whole[key], parts[key]) for key in whole)
    first, second = (whole[f"rng/{rank}-of-2/cpu"] for rank in range(2))
    assert not torch.equal(first, second), "each process draws its own"
    # On another number of processes the masks are others, and not those of the first steps again.
    one = [masked(None, config, None, 2, start)[0] for start in (place, tmp_path / "whole" / "step-00000004")]
    assert one[0] != one[1]


def trained(_group, config, folder, stop=None):
    """How a run ends, as `train` has it behind torchrun. stop: the step in which the first process hears Ctrl-C."""
    try:
        return _train(config, RunFolder(folder), make_world(Layout(shard=2)), stop and stop_at(stop), None)["steps"]
    except Interrupted as interrupted:
        return str(interrupted)


def test_processes_are_stopped_by_a_signal_and_go_on_to_the_same_bits(make_config, pair, tmp_path):
    config = make_config(batch_size=4, steps=8, save_every=8, evaluate_every=8, model={"layers": 1})
    said = pair.run(trained, config, tmp_path / "run", 6, ranks=2)
    assert all("stopped at step 6 of 8" in each for each in said) and steps_on_disk(tmp_path / "run") == [6]
    for folder in ("run", "straight"):
        assert pair.run(trained, config, tmp_path / folder, ranks=2) == [8, 8]
    assert weights(tmp_path / "run", 8) == weights(tmp_path / "straight", 8)
    assert results(tmp_path / "run") == results(tmp_path / "straight")


def train_apart(group, config, folders):
    """What is said where each process has a folder of its own, as if one path were on a disk of each."""
    from attnres.parallel import world

    world.SEE_SECONDS = 0.5
    with pytest.raises(UsageError) as caught:
        _train(config, RunFolder(folders[group.rank()]), make_world(Layout(shard=2)), None, None)
    return str(caught.value)


def test_a_folder_that_not_all_see_is_an_error_on_all_before_the_first_step(make_config, pair, tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    said = pair.run(train_apart, make_config(batch_size=4, steps=2), folders, ranks=2)
    assert all("process 1 does not see what process 0 writes there" in message for message in said)
    assert not [*tmp_path.rglob("metrics.jsonl"), *tmp_path.rglob(".seen-*")]
