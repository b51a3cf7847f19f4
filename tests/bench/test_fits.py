"""The table of what fits on which GPU is the one of the script, and a larger card never fits less."""

from __future__ import annotations

from training_pro.bench import fits


def test_the_readme_has_the_table_of_the_script():
    page = fits.PAGE.read_text(encoding="utf-8")
    assert page == fits.with_table(page), "run: python3 bench/fits.py --write"


def test_more_memory_or_fewer_bits_never_fit_less():
    for shape in fits.MODELS.values():
        for loading in fits.LOADINGS:
            longest = [fits.longest_cutoff(shape, loading, gb) for gb in fits.CARDS]
            assert longest == sorted(longest)
        assert fits.longest_cutoff(shape, "4bit", 24) >= fits.longest_cutoff(shape, "bfloat16", 24) > -1
    assert fits.longest_cutoff(fits.MODELS["8B (Llama 3.1)"], "bfloat16", 12) == 0  # 16 GB of weights
