import pytest

from llm_pipeline.config.target import Target
from llm_pipeline.tuning.sweep import Sweep, Trial, changed, knobs_of, settings_of, with_settings
from llm_pipeline.tuning.trials import trouble_in_text

CPU = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
H100 = Target(name="h100", accelerator="H100-SXM5-80GB", engine="tensorrt_llm_engine", runtime_version="1.2.1")
SEQUENCES, BATCHED = "limits.maximum_sequences", "limits.maximum_batched_tokens"


def sweep(measure, fits=lambda _: True, most_trials=30, target=CPU):
    knobs = knobs_of(target, most_threads=4)
    return Sweep(knobs, measure, fits, most_trials), settings_of(target, knobs)


def peak_at(**best):
    """A server whose rate falls with the distance of each setting from its best value, in doublings."""

    def measure(settings):
        rate = 100.0
        for path, value in best.items():
            rate /= 1 + abs((settings[path.replace("__", ".")] / value) - 1)
        return Trial(dict(settings), highest_rate_per_second=rate)

    return measure


def test_it_climbs_to_the_best_setting_and_no_further():
    running, start = sweep(peak_at(limits__maximum_sequences=128, limits__maximum_batched_tokens=1024))
    best = running.run(start)
    assert (best.settings[SEQUENCES], best.settings[BATCHED]) == (128, 1024)
    assert len({tuple(trial.settings.items()) for trial in running.trials}) == len(running.trials)


def test_noise_is_no_gain():
    running, start = sweep(
        lambda settings: Trial(dict(settings), highest_rate_per_second=100 + settings[SEQUENCES] / 100)
    )
    assert running.run(start) is running.trials[0]
    assert all(trial.settings[SEQUENCES] <= 64 for trial in running.trials)


def test_what_the_memory_model_refuses_is_never_tried():
    running, start = sweep(
        lambda settings: Trial(dict(settings), highest_rate_per_second=settings[SEQUENCES]),
        fits=lambda settings: settings[SEQUENCES] <= 128,
    )
    assert running.run(start).settings[SEQUENCES] == 128
    assert max(trial.settings[SEQUENCES] for trial in running.trials) == 128


def test_out_of_memory_turns_down_the_knob_that_helps_until_it_fits():
    def measure(settings):
        if settings[SEQUENCES] > 8:
            return Trial(dict(settings), trouble="out of memory")
        return Trial(dict(settings), highest_rate_per_second=settings[SEQUENCES])

    running, start = sweep(measure)
    assert running.run(start).settings[SEQUENCES] == 8
    assert [trial.settings[SEQUENCES] for trial in running.trials][:3] == [32, 16, 8]


def test_preemption_changes_the_scheduler_when_fewer_sequences_do_not_help():
    def measure(settings):
        if settings["runtime.scheduler"] == "max_utilization":
            return Trial(dict(settings), trouble="preemption")
        return Trial(dict(settings), highest_rate_per_second=10)

    target = with_settings(H100, {"runtime.scheduler": "max_utilization", SEQUENCES: 1})
    running, start = sweep(measure, target=target)
    assert running.run(start).settings["runtime.scheduler"] == "guaranteed_no_evict"


def test_the_budget_is_kept():
    running, start = sweep(peak_at(limits__maximum_sequences=2048), most_trials=3)
    running.run(start)
    assert len(running.trials) == 3


def test_settings_become_a_checked_target():
    tuned = with_settings(CPU, {SEQUENCES: 64})
    assert tuned.limits.maximum_sequences == 64
    knobs = knobs_of(CPU, most_threads=2)
    assert changed(settings_of(CPU, knobs), settings_of(tuned, knobs)) == f"{SEQUENCES} 32 -> 64"
    with pytest.raises(ValueError, match="maximum_sequences"):
        with_settings(CPU, {SEQUENCES: 0})


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("std::bad_alloc", "out of memory"),
        ("request 7 was preempted: no free blocks", "preemption"),
        ("port 8000 is in use", "failed"),
    ],
)
def test_trouble_is_told_by_its_text(text, trouble):
    assert trouble_in_text(text) == trouble
