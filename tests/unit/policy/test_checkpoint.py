"""Checkpoints: what is saved is what is loaded."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from sps.errors import UserError
from sps.policy.checkpoint import (
    damage,
    latest_checkpoint,
    load_trainer,
    load_weights,
    save_checkpoint,
    sound_checkpoint,
)
from sps.policy.embedded import make_tokenizer
from sps.policy.load import Policy, check_logits, load_policy, use_adapters
from sps.tasks.countdown import Countdown


def save(policy, folder):
    state = {"step": int(folder.name[5:] or 4), "cursor": 9}  # of its name, as in a run
    return save_checkpoint(folder, policy, state, {"x": torch.arange(3)})


def test_checkpoint_is_an_ordinary_model_folder(own_policy, tmp_path):
    own_policy.version = 17
    save(own_policy, tmp_path / "step-000004")
    again = load_policy(str(tmp_path / "step-000004"))
    for (name, a), b in zip(
        again.model.named_parameters(), own_policy.model.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    text = "5 10 8 5 -> 90 :"
    assert again.encode(text) == own_policy.encode(text)
    assert again.eos_ids == own_policy.eos_ids == [own_policy.tokenizer.convert_tokens_to_ids(".")]
    state, tensors = load_trainer(tmp_path / "step-000004")
    assert state == {"step": 4, "cursor": 9, "version": 17}
    assert torch.equal(tensors["x"], torch.arange(3))


def test_a_prompt_without_tokens_is_an_error_that_shows_it(own_policy):
    with pytest.raises(UserError, match=r"makes no token of the prompt ' ', .*words that it knows"):
        own_policy.encode(" ")


def test_load_weights_puts_them_back_in_place(own_policy, tmp_path):
    save(own_policy, tmp_path / "c")
    embedding = own_policy.model.get_input_embeddings().weight
    before = [p.detach().clone() for p in own_policy.model.parameters()]
    with torch.no_grad():
        for p in own_policy.model.parameters():
            p.add_(1.0)
    load_weights(own_policy, tmp_path / "c")
    for now, then in zip(own_policy.model.parameters(), before, strict=True):
        assert torch.equal(now, then)
    # Still one tensor, and the one that the optimizer holds.
    assert own_policy.model.get_input_embeddings().weight is embedding
    assert own_policy.model.get_output_embeddings().weight is embedding


def test_latest_checkpoint_is_the_newest_whole_one(own_policy, tmp_path):
    assert latest_checkpoint(tmp_path) is None
    for step in (2, 10):
        save(own_policy, tmp_path / f"step-{step:06d}")
    (tmp_path / "step-000012").mkdir()  # never finished
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000010"


def test_a_draft_left_by_a_crash_is_not_a_checkpoint(own_policy, tmp_path):
    save(own_policy, tmp_path / "step-000002")
    # A process killed between writing the draft and giving it its name leaves the whole draft.
    save(own_policy, tmp_path / "step-000004").rename(tmp_path / "step-000004.123.draft")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000002"


def test_broken_checkpoint_is_a_user_error(own_policy, tmp_path):
    save(own_policy, tmp_path / "c")
    (tmp_path / "c" / "model.safetensors").write_bytes(b"short")
    (tmp_path / "c" / "trainer.json").write_text("{")
    with pytest.raises(UserError, match="weights cannot be read"):
        load_weights(own_policy, tmp_path / "c")
    with pytest.raises(UserError, match="checkpoint cannot be read"):
        load_trainer(tmp_path / "c")


def test_truncated_trainer_state_is_a_user_error(own_policy, tmp_path):
    save(own_policy, tmp_path / "c")
    whole = (tmp_path / "c" / "trainer.pt").read_bytes()
    (tmp_path / "c" / "trainer.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="checkpoint cannot be read"):
        load_trainer(tmp_path / "c")


def test_missing_model_folder_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        load_policy(str(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"^\S+empty holds no model \(no config\.json\)\. Give"):
        load_policy(str(tmp_path / "empty"))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=r"model\.safetensors is a file; name the folder"):
        load_policy(str(tmp_path / "model.safetensors"))
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"cannot be loaded: .*[^: ]$"):
        load_policy(str(tmp_path / "empty"))


@pytest.mark.parametrize("given", [".", "sps", "sps/seed-0", "sps/seed-0/checkpoints"])
def test_a_folder_of_runs_given_as_a_model_names_a_checkpoint_in_it(own_policy, tmp_path, given):
    checkpoint = tmp_path / "sps" / "seed-0" / "checkpoints" / "step-000004"
    checkpoint.parent.mkdir(parents=True)
    save(own_policy, checkpoint)
    with pytest.raises(UserError) as said:
        load_policy(str(tmp_path / given))
    assert str(said.value).endswith(f"holds no model (no config.json); give {checkpoint}")
    load_policy(str(checkpoint))


@pytest.mark.filterwarnings("ignore::UserWarning")  # of peft: the layer is tied, and saved
def test_adapters_of_every_kind_are_put_back(own_policy, tmp_path):
    use_adapters(own_policy.model, rank=2, alpha=4, targets=["q_proj", "embed_tokens"])
    trained = {n: p for n, p in own_policy.model.named_parameters() if p.requires_grad}
    assert any("lora_embedding_A" in name for name in trained)
    with torch.no_grad():
        for number, p in enumerate(trained.values()):
            p.fill_(number + 1.0)
        save(own_policy, tmp_path / "step-000001")
        for p in trained.values():
            p.zero_()
    load_weights(own_policy, tmp_path / "step-000001")
    for number, (name, p) in enumerate(trained.items()):
        assert bool((p == number + 1.0).all()), name


def test_adapters_that_the_model_has_no_place_for_are_an_error(own_policy, tmp_path):
    use_adapters(own_policy.model, rank=2, alpha=4, targets=["q_proj"])
    folder = save(own_policy, tmp_path / "step-000001")
    names = load_file(folder / "adapter_model.safetensors")
    strange = {name.replace("q_proj", "r_proj"): weight for name, weight in names.items()}
    save_file(strange, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"adapter_model.safetensors: .* no place for .*r_proj"):
        load_weights(own_policy, folder)


def test_logits_changed_in_an_unknown_way_are_an_error(own_policy):
    check_logits(own_policy.model, "here")
    own_policy.model.config.logit_scale = 0.5  # which a Llama does not heed
    with pytest.raises(UserError, match=r"model.path: here: LlamaForCausalLM changes its logits"):
        check_logits(own_policy.model, "here")


def mixture(kind) -> Policy:
    """A mixture of experts, whose files name the experts otherwise than the model does."""
    tokenizer = make_tokenizer(Countdown().vocabulary())
    shape = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
        "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "mixtral":
        model = MixtralForCausalLM(MixtralConfig(num_local_experts=4, **shape))
    else:
        own = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(head_dim=8, **own, **shape))
    return Policy(model.eval(), tokenizer, "test")


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_a_mixture_of_experts_goes_back_as_a_whole(kind, tmp_path):
    policy = mixture(kind)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=0.1)
    ids = torch.arange(5, 13)[None]

    def step():
        policy.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    save(policy, tmp_path / "c")
    saved = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    assert not saved.keys() <= load_file(tmp_path / "c" / "model.safetensors").keys()
    step()
    for name, p in policy.model.named_parameters():
        if "norm" not in name:  # of heads, which this input may leave alone
            assert not torch.equal(p, saved[name]), name
    load_weights(policy, tmp_path / "c")
    for name, p in policy.model.named_parameters():
        assert torch.equal(p, saved[name]), name


def test_weights_in_several_files_are_put_back(own_policy, tmp_path):
    before = [p.detach().clone() for p in own_policy.model.parameters()]
    own_policy.model.save_pretrained(tmp_path / "c", max_shard_size="20KB")
    assert len([*(tmp_path / "c").glob("model-*.safetensors")]) > 1
    with torch.no_grad():
        for p in own_policy.model.parameters():
            p.zero_()
    load_weights(own_policy, tmp_path / "c")
    assert all(map(torch.equal, own_policy.model.parameters(), before))


@pytest.mark.parametrize("change", ["missing", "more"])
def test_a_name_that_the_model_and_the_file_do_not_share_is_an_error(own_policy, tmp_path, change):
    path = save(own_policy, tmp_path / "c") / "model.safetensors"
    weights = load_file(path)
    if change == "missing":
        del weights["model.layers.1.mlp.up_proj.weight"]
    else:
        weights["model.layers.2.mlp.up_proj.weight"] = torch.ones(2)
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(UserError, match=r"not those of its model .*mlp\.up_proj"):
        load_weights(own_policy, tmp_path / "c")


def test_a_checkpoint_of_another_shape_is_an_error(own_policy, tmp_path):
    shape = LlamaConfig(**{**own_policy.model.config.to_dict(), "num_hidden_layers": 1})
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "c")
    with pytest.raises(UserError, match=r"only it or only the model has: model\.layers\.1"):
        load_weights(own_policy, tmp_path / "c")


def test_adapters_that_are_missing_are_an_error(own_policy, tmp_path):
    use_adapters(own_policy.model, rank=2, alpha=4, targets=["q_proj"])
    path = save(own_policy, tmp_path / "step-000001") / "adapter_model.safetensors"
    names = load_file(path)
    gone = names.popitem()[0]
    save_file(names, path)
    with pytest.raises(UserError, match=r"no weights for .*q_proj"):
        load_weights(own_policy, path.parent)
    assert "q_proj" in gone


def flip(path, bit=5):
    """One bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "trainer.json", "config.json"])
def test_one_flipped_bit_is_found_and_the_checkpoint_before_is_taken(own_policy, tmp_path, name):
    for step in (2, 4):
        save(own_policy, tmp_path / f"step-{step:06d}")
    assert sound_checkpoint(tmp_path) == (tmp_path / "step-000004", {})
    flip(tmp_path / "step-000004" / name)
    found, wrong = sound_checkpoint(tmp_path)
    assert found == tmp_path / "step-000002"
    assert list(wrong) == [tmp_path / "step-000004"]
    assert name in wrong[tmp_path / "step-000004"] or name == "trainer.json"  # no JSON any more
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["damaged-step-000004", "step-000002"]


def test_a_lost_file_is_found_and_a_card_that_was_edited_is_no_damage(own_policy, tmp_path):
    folder = save(own_policy, tmp_path / "step-000002")
    (folder / "README.md").write_text("mine")
    assert damage(folder) == ""
    (folder / "tokenizer.json").unlink()
    assert damage(folder) == "tokenizer.json is missing"
    found, wrong = sound_checkpoint(tmp_path)
    assert found is None
    assert list(wrong) == [folder]
    assert folder.exists()  # with nothing else to go on with, it stays in its place


def test_a_checkpoint_of_an_older_version_has_no_checksums_and_is_taken(own_policy, tmp_path):
    folder = save(own_policy, tmp_path / "step-000002")
    (folder / "checksums.json").unlink()
    assert sound_checkpoint(tmp_path) == (folder, {})
