"""Findings: their order, each sentence once, and suggested values in words."""

from __future__ import annotations

from training_pro.core.findings import Finding, advice, note, problem, sort_findings, texts


def test_findings_are_sorted_by_level_and_each_sentence_stands_once():
    findings = [note("", "n"), advice("rank", "b"), problem("data", "p"), advice("alpha", "a"), advice("", "b")]
    assert [finding.text for finding in sort_findings(findings)] == ["p", "b", "a", "n"]
    assert texts(findings, "problem") == ("p",)


def test_a_finding_is_equal_to_what_is_restored_of_it():
    assert Finding(*["advice", "data", "a"]) == advice("data", "a")
