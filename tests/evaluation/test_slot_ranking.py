"""Slots before each step and what ranks them, against searches and sums in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from oracles import Case, empty_beam, extensions, log_sum_exp, tagger_case, translation_case, until_end
from seqwise import InputError
from seqwise.data import EncodedExample
from seqwise.decoding import Decoder, step_limit
from seqwise.evaluation import paired_bootstrap, rank_slots
from seqwise.evaluation.slot_ranking import unroll_slots
from seqwise.search import HardTopK, Score, global_, local

CASES = {"tagger": tagger_case, "translation": translation_case}


def walk(oracle: Any, prefix: Sequence[int]) -> tuple[float, float, float]:
    """Log-probability and raw score of a prefix, and log Z of its next step (0 after the end token)."""
    fed, state = oracle.start()
    log_prob = raw = 0.0
    for step, token in enumerate(prefix):
        logits, state = oracle.step(fed, state, step)
        raw += logits[token]
        log_prob += logits[token] - log_sum_exp(logits)
        fed = oracle.embeddings[token]
    over = len(prefix) > 0 and prefix[-1] == oracle.end
    if over or len(prefix) == getattr(oracle, "limit", 99):
        return log_prob, raw, 0.0
    return log_prob, raw, log_sum_exp(oracle.step(fed, state, len(prefix))[0])


@pytest.mark.parametrize("score", [local, global_], ids=["local", "raw"])
@pytest.mark.parametrize("kind", CASES)
def test_slots_are_those_of_the_search_with_both_scores(kind: str, score: Score) -> None:
    case: Case = CASES[kind](3)
    num_steps_B = case.batch.source_lengths_B
    context = case.model.encode(case.batch)
    found = list(unroll_slots(case.model, context, Decoder(HardTopK(3), score), num_steps=num_steps_B))
    checked = 0
    for row, oracle in enumerate(case.oracles):
        oracle.limit = int(num_steps_B[row])
        beam = empty_beam(oracle)
        for step in range(oracle.limit + 1):
            if step >= len(found):  # all have ended
                break
            slots = found[step]
            live = [slot for slot, value in enumerate(slots.scores_BJ[row].tolist()) if value != -torch.inf]
            prefixes = [[token for token in slots.prefixes_BJT[row, slot].tolist() if token >= 0] for slot in live]
            expected = [until_end(hypothesis.tokens, oracle.end) for hypothesis in beam]
            assert [until_end(prefix, oracle.end) for prefix in prefixes] == expected
            for slot, hypothesis in zip(live, beam, strict=True):
                prefix = until_end(hypothesis.tokens, oracle.end)
                columns = (slots.log_probs_BJ, slots.raw_scores_BJ, slots.log_partitions_BJ)
                assert [column[row, slot].item() for column in columns] == pytest.approx(walk(oracle, prefix), abs=1e-9)
                is_open = len(prefix) < oracle.limit and (not prefix or prefix[-1] != oracle.end)
                assert bool(slots.open_BJ[row, slot]) == is_open
                checked += 1
            if step < oracle.limit:
                beam = extensions(oracle, beam, step, log_partition_weight=score.log_partition_weight)[:3]
    assert checked > 20


def ranking_by_hand(
    case: Case, references: Sequence[Sequence[tuple[int, ...]]], k: int
) -> dict[str, list[tuple[float, int]]]:
    """(wins, pairs) of each example for each statistic, and (steps with gold on the beam, steps)."""
    result: dict[str, list[tuple[float, int]]] = {
        name: [] for name in ("log_prob", "log_partition", "both", "raw", "on_beam")
    }
    for example, oracle, options in zip(case.examples, case.oracles, references, strict=True):
        limit = step_limit(len(example.source_ids), oracle.end)
        wins, pairs, kept = [0.0] * 4, 0, 0
        beam = empty_beam(oracle)
        steps = min(limit, max(map(len, options)))
        for step in range(steps):
            growing = [one for one in beam if one.tokens[-1:] != (oracle.end,)]
            right = [
                one for one in growing if any(one.tokens == option[:step] and step < len(option) for option in options)
            ]
            wrong = [one for one in growing if one not in right]
            if step > 0:
                kept += bool(right)
            if step > 0 and right and wrong:
                pairs += 1
                for place, pick in enumerate(
                    (lambda w: w[0], lambda w: w[2], lambda w: w[0] + w[2], lambda w: w[1] + w[2])
                ):
                    oracle.limit = 99
                    wins[place] += pick(walk(oracle, right[0].tokens)) > pick(walk(oracle, wrong[0].tokens))
            beam = extensions(oracle, beam, step)[:k]
        for name, value in zip(result, wins, strict=False):
            result[name].append((value, pairs))
        result["on_beam"].append((float(kept), steps - 1))
    return result


@pytest.mark.parametrize("batch_size", [1, 256])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", CASES)
def test_ranking_equals_a_count_by_hand(kind: str, seed: int, batch_size: int) -> None:
    lengths = (3, 2, 4, 3) if kind == "tagger" else (2, 3, 1, 2)
    case: Case = CASES[kind](seed, lengths=lengths)
    references = [[example.target_ids] for example in case.examples]
    references[0].append(tuple(case.oracles[0].end or 0 for _ in references[0][0]) or (0,))
    if kind == "translation":  # long enough to be on a beam for some steps
        references[1] = [(0, 2, 0, 1), (2, 3, 1)]
        references[0] = [(3, 3, 0, 1), (0, 2, 2, 2, 1)]
    done: list[int] = []
    found = rank_slots(case.model, case.examples, references, k=4, batch_size=batch_size, on_progress=done.append)
    expected = ranking_by_hand(case, references, 4)
    assert sum(pairs for _, pairs in expected["both"]) > 0
    for name, rows in expected.items():
        counts = getattr(found, name)
        numerators, denominators = counts.numerators_N, counts.denominators_N
        assert list(zip(numerators.tolist(), denominators.tolist(), strict=True)) == rows, name
    assert sum(done) == len(case.examples)


def test_equal_log_z_ranks_at_chance() -> None:
    case = tagger_case(1, lengths=(4, 5, 3))
    with torch.no_grad():
        case.model.head.weight.zero_()
    references = [[example.target_ids] for example in case.examples]
    found = rank_slots(case.model, case.examples, references, k=8)
    assert found.log_partition.value == 0.5
    assert paired_bootstrap(found.both, found.log_prob).difference == 0
    assert found.raw.value == found.log_prob.value


def test_what_cannot_be_ranked_is_refused() -> None:
    case = tagger_case(0)
    references = [[example.target_ids] for example in case.examples]
    with pytest.raises(InputError, match="no two slots"):
        rank_slots(case.model, case.examples, references, k=1)
    with pytest.raises(InputError, match="no reference"):
        rank_slots(case.model, case.examples, [[], *references[1:]], k=3)
    with pytest.raises(InputError, match="no step at which"):
        rank_slots(case.model, [EncodedExample((1,), ())], [[(0,)]], k=3)


def test_the_model_keeps_its_mode() -> None:
    case = tagger_case(0)
    case.model.train()
    rank_slots(case.model, case.examples, [[example.target_ids] for example in case.examples], k=3)
    assert case.model.training
