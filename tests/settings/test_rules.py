"""Rules between settings, notes and advice."""

import pytest
from training_pro.core.findings import texts
from training_pro.settings.parsing import training_settings
from training_pro.settings.rules import check_settings


def problems(settings):
    return list(texts(check_settings(settings), "problem"))


def advice(settings):
    return list(texts(check_settings(settings), "advice"))


def settings(**values):
    return training_settings({"name": "a", "data": ["x.txt"], "overlap": False, **values})


def advice_on(**values):
    return advice(settings(**values))


def test_the_defaults_need_no_advice():
    assert advice(training_settings({"name": "a", "data": ["x.txt"]})) == []
    assert problems(settings()) == []


def test_data_must_be_chosen():
    from training_pro.settings.definitions import TrainingSettings

    assert problems(TrainingSettings()) == ["Dataset: choose at least one file, for example story.txt."]


def test_where_saving_by_the_loss_begins_is_said():
    """Save when the loss falls below 6.2" saved nothing at a smoothed loss of 6.16."""
    (told,) = check_settings(settings(save_on_loss_drop=6.2))
    assert told.level == "note"
    assert "the smoothed loss is 10% lower, at 5.58, and stays there for 3 steps" in told.text


@pytest.mark.parametrize(
    ("rank", "alpha", "rslora", "strength"),
    [
        (32, 128, False, None),
        (32, 129, False, "4.03"),
        (64, 32, True, None),
        (64, 33, True, "4.12"),
        (1, 8, False, "8"),
    ],
)
def test_a_high_strength_gives_advice(rank, alpha, rslora, strength):
    sentences = advice_on(rank=rank, alpha=alpha, rslora=rslora)
    assert len(sentences) == (strength is not None)
    assert all(sentence.startswith(f"The LoRA scaling {strength} ") for sentence in sentences)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"learning_rate": 5e-3}, ""),
        ({"learning_rate": 0.5}, "Learning Rate 0.5 is far above the usual value (0.0002)"),
        ({"learning_rate": 5e-3, "rank": 8, "alpha": 32}, "Learning Rate 0.005 is far above"),
        (
            {"learning_rate": 5e-3, "method": "full"},
            "Learning Rate 0.005 is far above the usual value (1e-05)",
        ),
        ({"learning_rate": 2e-4, "lora_plus": 16}, ""),
        (
            {"learning_rate": 2e-3, "lora_plus": 16},
            "LoRA+ 16 raises the rate of the LoRA's B matrices to 0.032, far above",
        ),
        ({"stop_at_loss": 1.5}, ""),
        ({"stop_at_loss": 5}, "Stop at loss 5: many models start near or below this loss"),
    ],
)
def test_values_that_end_or_break_a_run_at_once_give_advice(values, said):
    sentences = advice_on(**values)
    assert len(sentences) == bool(said)
    assert all(sentence.startswith(said) for sentence in sentences)


def test_the_advice_against_a_high_strength_helps():
    (sentence,) = advice_on(rank=16, alpha=512)
    assert sentence.endswith("Try alpha 16.")
    assert advice_on(rank=16, alpha=16) == []
    (sentence,) = advice_on(rank=64, alpha=64, rslora=True)
    better = float(sentence.rpartition(" ")[2].rstrip("."))
    assert advice_on(rank=64, alpha=better, rslora=True) == []


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [("adamw_torch", True), ("stable_adamw", True), ("paged_adamw_32bit", True)]
    + [(name, False) for name in ("adamw_8bit", "adamw_torch_4bit", "adafactor", "sgd", "lion_8bit")],
)
def test_train_head_advises_another_optimizer_only_where_it_keeps_two_numbers(optimizer, said):
    assert any("two additional values" in one for one in advice_on(train_head=True, optimizer=optimizer)) is said


def test_an_end_token_after_every_block_gives_advice():
    (sentence,) = advice_on(add_eos="every_block")
    assert "stop in the middle" in sentence
