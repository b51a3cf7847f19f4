"""Rules between settings, notes and advice."""

import pytest
from training_pro.core.findings import texts
from training_pro.settings import rules
from training_pro.settings.definitions import TrainingSettings
from training_pro.settings.parsing import training_settings


def findings(**values):
    return rules.check_settings(training_settings({"name": "a", "data": ["x.txt"], "overlap": False, **values}))


def advice(**values):
    return list(texts(findings(**values), "advice"))


def test_the_defaults_need_no_advice_but_data():
    assert list(findings(overlap=True)) == list(findings()) == []
    (problem,) = texts(rules.check_settings(TrainingSettings()), "problem")
    assert problem == "Dataset: choose at least one file, for example story.txt."


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rank": 32, "alpha": 128}, ""),
        ({"rank": 32, "alpha": 129}, "The LoRA scaling 4.03 "),
        ({"rank": 64, "alpha": 33, "rslora": True}, "The LoRA scaling 4.12 "),
        ({"learning_rate": 5e-3}, ""),
        ({"learning_rate": 5e-3, "rank": 8, "alpha": 32}, "Learning Rate 0.005 is far above"),
        ({"learning_rate": 5e-3, "method": "full"}, "Learning Rate 0.005 is far above the usual value (1e-05)"),
        ({"learning_rate": 2e-3, "lora_plus": 16}, "LoRA+ 16 raises the rate of the LoRA's B matrices to 0.032,"),
        ({"stop_at_loss": 5}, "Stop at loss 5: many models start near or below this loss"),
        ({"stop_at_loss": 0.7, "objective": "dpo", "learning_rate": 2e-5}, "Stop at loss 0.7: many models start"),
    ],
)
def test_values_that_end_or_break_a_run_at_once_give_advice(values, said):
    sentences = advice(**values)
    assert len(sentences) == bool(said)
    assert all(sentence.startswith(said) for sentence in sentences)


def test_the_advice_against_a_high_strength_helps_and_one_against_end_tokens_says_why():
    assert advice(rank=16, alpha=512)[0].endswith("Try alpha 16.") and advice(rank=16, alpha=16) == []
    assert "stop in the middle" in advice(add_eos="every_block")[0]
    (sentence,) = advice(rank=64, alpha=64, rslora=True)
    assert advice(rank=64, alpha=float(sentence.rpartition(" ")[2].rstrip(".")), rslora=True) == []


def test_train_head_advises_another_optimizer_only_where_it_keeps_two_numbers():
    two_numbers = {"adamw_torch": True, "stable_adamw": True, "paged_adamw_32bit": True}
    one = dict.fromkeys(("adamw_8bit", "adamw_torch_4bit", "adafactor", "sgd", "lion_8bit"), False)
    for name, told in (two_numbers | one).items():
        assert any("two additional values" in text for text in advice(train_head=True, optimizer=name)) is told
