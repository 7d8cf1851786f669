from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from llm_pipeline.accuracy.lm_eval_checkpoint import HarnessModel
from llm_pipeline.accuracy.shared_prefix import (
    BatchSize,
    out_of_memory_halves,
    score_continuations,
    sequences_that_fit,
    why_not_shared,
)
from llm_pipeline.accuracy.token_rows import pack_rows
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.release import Evaluation
from llm_pipeline.quantization import readback
from llm_pipeline.quantization.readback import load_model

EVALUATION = Evaluation(tasks=("a",), served_tasks=("a",), batch_size=24, maximum_length=128)
EXAMPLES = "The moon is red. Two dogs sing. Seven cats see a tree. The old moon is over two trees. " * 2
CONTEXTS = [
    *(f"{EXAMPLES}Who sings? Dog {n}." for n in range(4)),
    *(f"the cat sees {n} dogs and" for n in range(8)),
    "a trailing space ",
    "",
]
CHOICES = (" a moon", " x", " seven old trees", " two")


def instances():
    pairs = [(context, choice) for context in CONTEXTS for choice in CHOICES]
    return [
        Instance("loglikelihood", {}, pair, index % 4, metadata=("a", index // 4, 1))
        for index, pair in enumerate(pairs)
    ]


def lm_evals_own(model, tokenizer, dtype="float32"):
    own = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=24, max_length=128, add_bos_token=True)
    own.softmax_dtype = getattr(torch, dtype)
    return own.loglikelihood(instances(), disable_tqdm=True)


@pytest.mark.parametrize(("dtype", "noise"), [(torch.float32, 1e-4), (torch.float16, 0.05)])
def test_scores_are_those_of_lm_eval(source, dtype, noise):
    model, tokenizer = load_model(source, dtype), AutoTokenizer.from_pretrained(source)
    ours = HarnessModel(model, tokenizer, EVALUATION)
    assert ours.scoring == "shared prefixes"
    found, expected = ours.loglikelihood(instances()), lm_evals_own(model, tokenizer)
    np.testing.assert_allclose([value for value, _ in found], [value for value, _ in expected], atol=noise)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    likeliest = [np.argmax(np.reshape([value for value, _ in side], (-1, 4)), axis=1) for side in (found, expected)]
    assert (likeliest[0] == likeliest[1]).all()


def test_a_quantized_kv_cache_is_read_as_in_plain_sequences(source):
    model, tokenizer = load_model(source, torch.float32), AutoTokenizer.from_pretrained(source)
    layers = [name for name, module in model.named_modules() if hasattr(module, "k_proj")]
    scales = {f"{name}.{part}": 0.01 for name in layers for part in ("k_proj.k_scale", "v_proj.v_scale")}
    plain = [value for value, _ in lm_evals_own(model, tokenizer)]
    readback._quantize_kv_cache(model, SimpleNamespace(kv_scales=scales, metadata=SimpleNamespace(kv_cache="FP8")))
    ours = HarnessModel(model, tokenizer, EVALUATION)
    assert ours.scoring == "shared prefixes"
    found = [value for value, _ in ours.loglikelihood(instances())]
    np.testing.assert_allclose(found, [value for value, _ in lm_evals_own(model, tokenizer)], atol=1e-3)
    assert np.abs(np.subtract(found, plain)).max() > 0.01


def test_a_window_that_is_shorter_than_a_context_is_left_to_lm_eval(source):
    config = MistralConfig(
        vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=8, max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(0)
    model, tokenizer = MistralForCausalLM(config).eval(), AutoTokenizer.from_pretrained(source)
    ours = HarnessModel(model, tokenizer, EVALUATION)
    assert "looks back 8 tokens" in ours.scoring
    found = ours.loglikelihood(instances())
    np.testing.assert_allclose(
        [value for value, _ in found], [value for value, _ in lm_evals_own(model, tokenizer)], atol=1e-4
    )
    assert "a trial differs" in why_not_shared(model, 8)


def test_positions_that_are_learnt_are_shared_too():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=2, n_positions=128)).eval()
    assert why_not_shared(model, 64) is None


def test_a_model_that_ignores_the_mask_is_found_out_by_trying(source):
    model = copy.copy(load_model(source, torch.float32))
    plain = type(model).forward

    class Forgetful(type(model)):
        def forward(self, input_ids, attention_mask=None, position_ids=None, logits_to_keep=0, **options):  # noqa: ARG002
            return plain(self, input_ids, position_ids=position_ids, logits_to_keep=logits_to_keep, **options)

    model.__class__ = Forgetful
    assert "a trial differs by" in why_not_shared(model, 64)


def test_memory_that_runs_out_halves_the_batch_and_goes_on():
    rows, tried = pack_rows([((1, n), (2,)) for n in range(20)]), []

    def run(batch):
        tried.append(len(batch))
        if len(batch) > 6:
            raise torch.OutOfMemoryError

    out_of_memory_halves(run, rows, BatchSize(requests=16))
    assert tried == [16, 8, 4, 4, 4, 4, 4]
    out_of_memory_halves(run, rows, BatchSize())


def test_a_row_that_does_not_fit_alone_is_told_with_its_length():
    def run(_batch):
        raise torch.OutOfMemoryError

    with pytest.raises(Unsupported, match="a sequence of 5 tokens does not fit"):
        out_of_memory_halves(run, pack_rows([((1, 2, 3), (4, 5, 6))]), BatchSize())


def test_running_out_of_memory_changes_no_score(source, monkeypatch):
    model = load_model(source, torch.float32)
    requests = [((1, n, 5), (n, 7, 3)) for n in range(2, 40)]
    whole = score_continuations(model, requests, BatchSize(tokens=4096))
    forward = type(model).forward

    def scarce(self, input_ids, **options):
        if input_ids.shape[0] > 5:
            raise torch.OutOfMemoryError
        return forward(self, input_ids, **options)

    monkeypatch.setattr(type(model), "forward", scarce)
    scarcely = score_continuations(model, requests, BatchSize(tokens=4096))
    np.testing.assert_allclose([s.log_likelihood for s in whole], [s.log_likelihood for s in scarcely], atol=1e-4)


def test_generation_that_runs_out_of_memory_goes_on_with_half_the_batch(source, monkeypatch):
    model, tokenizer = load_model(source, torch.float32), AutoTokenizer.from_pretrained(source)
    options = {"until": ["\n"], "do_sample": False, "max_gen_toks": 3}
    prompts = [Instance("generate_until", {}, (text, options), 0, metadata=("a", 0, 1)) for text in CONTEXTS if text]
    whole = HarnessModel(model, tokenizer, EVALUATION).generate_until(prompts)
    generate, sizes = HarnessModel._model_generate, []

    def scarce(self, context, *arguments, **options):
        sizes.append(len(context))
        if len(context) > 6:
            raise torch.OutOfMemoryError
        return generate(self, context, *arguments, **options)

    monkeypatch.setattr(HarnessModel, "_model_generate", scarce)
    assert HarnessModel(model, tokenizer, EVALUATION).generate_until(prompts) == whole
    assert sizes == [13, 12, 6, 6, 1]


def test_a_batch_ends_at_the_first_limit_that_is_reached():
    rows = pack_rows([((1, n), (2, 3)) for n in range(30)])  # three tokens each, two of them scored
    assert len(BatchSize(tokens=12).take(rows, 0)) == 4
    assert len(BatchSize(requests=7).take(rows, 0)) == 7
    assert len(BatchSize(bytes=3 * 10 * 5 + 2 * 100 * 5, token_bytes=10, logit_bytes=100).take(rows, 0)) == 5
    assert len(BatchSize(tokens=1).take(rows, 29)) == 1


def test_what_was_wanted_is_what_is_generated_together(source):
    model = load_model(source, torch.float32)
    assert sequences_that_fit(model, 128, 7) == 7
    assert sequences_that_fit(model, 128, "auto") == 64
