"""A process alone, and what of a launch is refused; ranks together are in tests/e2e."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import str_to_bool

from sps.errors import UserError
from sps.ranks import ALONE, is_on, join_ranks


def test_a_process_alone_does_all_the_work_itself(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = join_ranks()
    assert ranks is ALONE
    assert ranks.main
    assert ranks.shard([1, 2, 3]) == [1, 2, 3]
    assert ranks.gather([1, 2]) == [1, 2]
    assert ranks.broadcast(lambda: 7) == 7
    assert ranks.total({"loss": 0.5}) == {"loss": 0.5}
    assert ranks.maximum(4) == 4


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "fsdp_version: 1"),
        (
            {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"},
            "fsdp_offload_params",
        ),
        (
            {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"},
            "zero_stage: only 3",
        ),
        (
            {
                "ACCELERATE_USE_DEEPSPEED": "true",
                "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu",
            },
            "offload_param_device",
        ),
    ],
)
def test_what_a_launch_asks_for_in_vain_is_refused_by_its_key(monkeypatch, settings, key):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=key):
        join_ranks("cpu")


@pytest.mark.parametrize(
    ("name", "kind"), [("ddp", "MULTI_GPU"), ("fsdp2", "FSDP"), ("deepspeed_zero3", "DEEPSPEED")]
)
def test_accelerate_reads_the_launch_files(name, kind):
    path = Path(__file__).parents[2] / "launch" / f"{name}.yaml"
    found = load_config_from_file(str(path))  # refuses keys it does not know
    assert found.distributed_type == kind
    assert found.mixed_precision == "no"


def test_a_variable_is_on_in_the_words_that_accelerate_takes(monkeypatch):
    for word in ("true", "True", "1", "yes", "on", "y", "t", "false", "0", "no", "off"):
        monkeypatch.setenv("SPS_SWITCH", word)
        assert is_on("SPS_SWITCH") == bool(str_to_bool(word))
    monkeypatch.delenv("SPS_SWITCH")
    assert not is_on("SPS_SWITCH")
