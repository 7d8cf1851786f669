"""TensorRT-LLM checkpoints of several ranks: exported by modelopt, checked, and read by the engine builder."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

import exports
from safetensors.torch import load_file, save_file

from llm_pipeline.adapters.tensorrt_llm.trtllm_build.checkpoint import read_build_checkpoint
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.config.quantization import CheckpointRanks
from llm_pipeline.config.target import Target
from llm_pipeline.quantization.divisibility import DecoderSizes, read_decoder_sizes, refuse_uneven_ranks
from llm_pipeline.quantization.modelopt_configs import modelopt_config
from llm_pipeline.quantization.tensorrt_llm_checkpoint import check_tensorrt_llm_checkpoint, export_tensorrt_llm

SPLITS = [(2, 1), (1, 2), (2, 2)]
LLAMA_8B = DecoderSizes(layers=32, attention_heads=32, key_value_heads=8, head_size=128, intermediate_size=14336)


def asking(weights, tensor, pipeline):
    ranks = CheckpointRanks(tensor=tensor, pipeline=pipeline)
    return exports.recipe(weights, tensorrt_llm_checkpoint=True, tensorrt_llm_ranks=ranks)


@pytest.fixture(scope="module")
def spread(llama, tmp_path_factory):
    """Its TensorRT-LLM checkpoint in FP8, by the split: directory and recipe."""
    made = {}

    def make(tensor, pipeline, weights="fp8"):
        if (tensor, pipeline, weights) not in made:
            recipe, directory = asking(weights, tensor, pipeline), tmp_path_factory.mktemp("ranks") / "checkpoint"
            model = exports.quantize(exports.load(llama), modelopt_config(recipe))
            with contextlib.redirect_stdout(io.StringIO()), torch.inference_mode():
                export_tensorrt_llm(model, torch.float16, directory, recipe.tensorrt_llm_ranks)
            made[tensor, pipeline, weights] = directory, recipe
        return made[tensor, pipeline, weights]

    return make


def target_of(tensor, pipeline):
    parallelism = {"tensor": tensor, "pipeline": pipeline}
    return Target(name="l40s", accelerator="L40S", engine="tensorrt_llm_engine", parallelism=parallelism)


@pytest.mark.parametrize(("tensor", "pipeline"), SPLITS)
def test_a_checkpoint_of_several_ranks_is_what_the_engine_builder_takes(spread, tensor, pipeline):
    directory, recipe = spread(tensor, pipeline)
    exported = check_tensorrt_llm_checkpoint(directory, recipe, "float16")
    checkpoint = read_build_checkpoint(directory, target_of(tensor, pipeline))
    assert sum(checkpoint.rank_bytes) == exported
    assert len(checkpoint.rank_bytes) == tensor * pipeline


@pytest.mark.parametrize("weights", ["fp8", "int8_smoothquant"])
def test_tensor_parallel_ranks_hold_the_parts_of_the_whole_head_by_head(spread, weights):
    whole = load_file(spread(1, 1, weights)[0] / "rank0.safetensors")
    parts = [load_file(spread(2, 1, weights)[0] / f"rank{rank}.safetensors") for rank in (0, 1)]
    name = "transformer.layers.1.attention.qkv.weight"
    queries, keys, values = whole[name].view(torch.uint8).split([128, 64, 64])
    for rank, part in enumerate(parts):
        expected = torch.cat([block.chunk(2)[rank] for block in (queries, keys, values)])
        assert torch.equal(part[name].view(torch.uint8), expected)
    name = "transformer.layers.1.mlp.proj.weight"
    assert torch.equal(torch.cat([part[name].view(torch.uint8) for part in parts], 1), whole[name].view(torch.uint8))


def test_a_target_with_other_ranks_is_refused(spread):
    with pytest.raises(Unsupported, match=r"is for 2 x 1 ranks .* l40s has 1 x 2"):
        read_build_checkpoint(spread(2, 1)[0], target_of(1, 2))


@pytest.fixture
def copied(spread, tmp_path):
    """A copy of the checkpoint of 2 x 2 ranks, and its recipe."""
    directory, recipe = spread(2, 2)
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path, recipe


def check(copied):
    check_tensorrt_llm_checkpoint(*copied, "float16")


def test_a_missing_or_surplus_rank_is_damage(copied):
    directory, _ = copied
    (directory / "rank4.safetensors").write_bytes((directory / "rank3.safetensors").read_bytes())
    with pytest.raises(IntegrityError, match=r"rank4\.safetensors: there are 4 ranks"):
        check(copied)
    (directory / "rank3.safetensors").unlink()
    (directory / "rank4.safetensors").unlink()
    with pytest.raises(IntegrityError, match="unreadable weights"):
        check(copied)


def test_ranks_in_each_others_place_are_damage(copied):
    directory, _ = copied
    (directory / "rank0.safetensors").write_bytes((directory / "rank2.safetensors").read_bytes())
    with pytest.raises(IntegrityError, match=r"vocab_embedding\.weight is missing, or not where it belongs"):
        check(copied)


def test_ranks_of_one_group_have_one_shape(copied):
    directory, _ = copied
    tensors = load_file(directory / "rank3.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "rank3.safetensors")
    with pytest.raises(IntegrityError, match="are not of one shape"):
        check(copied)


def test_each_group_of_a_pipeline_has_its_share_of_the_layers(copied):
    directory, _ = copied
    config = json.loads((directory / "config.json").read_text())
    for layers, problem in ((4, "layer 1 has no weights"), (0, "more than 0 layers")):
        (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        with pytest.raises(IntegrityError, match=problem):
            check(copied)


@pytest.mark.parametrize("wrong", [{"tp_size": 4, "pp_size": 1}, {"world_size": 2}, {"pp_size": 1}])
def test_a_mapping_that_is_not_the_recipes_is_damage(copied, wrong):
    directory, _ = copied
    config = json.loads((directory / "config.json").read_text())
    config["mapping"] |= wrong
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(IntegrityError, match="it should be"):
        check(copied)


@pytest.mark.parametrize(
    ("weights", "tensor", "pipeline", "problem"),
    [
        ("fp8", 3, 1, "32 attention heads are not divisible by tensor 3"),
        ("fp8", 1, 5, "32 layers are not divisible by pipeline 5"),
        ("int8_smoothquant", 16, 1, "8 key and value heads of int8_smoothquant cannot be repeated for tensor 16"),
        ("int4_awq", 32, 1, "the 14336 columns of the MLP give no whole blocks of 128 to each of 32 ranks"),
    ],
)
def test_ranks_that_a_model_does_not_divide_into_are_refused(weights, tensor, pipeline, problem):
    with pytest.raises(Unsupported, match=problem):
        refuse_uneven_ranks(asking(weights, tensor, pipeline), LLAMA_8B)


def test_ranks_that_it_divides_into_pass():
    for weights, tensor, pipeline in (("fp8", 16, 2), ("int8_smoothquant", 8, 1), ("int4_awq", 4, 8)):
        refuse_uneven_ranks(asking(weights, tensor, pipeline), LLAMA_8B)
    with pytest.raises(Unsupported, match="6 key and value heads do not spread over tensor 4"):
        refuse_uneven_ranks(asking("fp8", 4, 1), LLAMA_8B._replace(key_value_heads=6))


def test_sizes_are_read_from_the_checkpoint(llama):
    assert read_decoder_sizes(llama) == DecoderSizes(2, 4, 2, 32, 256)
