"""The audit of masked diffusion decoders: the laws it compares with, its theorems, and a small run."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from reproducing import read_back, setup
from reproductions.beyond import masked_diffusion_audit as audit
from reproductions.goyal_2021.enumerable import palindromes, total_variation
from reproductions.report import Table
from seqwise.models import MaskedLSTM
from seqwise.sampling import masked_conditionals, table_model, threshold_decoding, unmasking_law
from seqwise.sampling.correctness import TableModel, every_sequence


def test_a_table_has_the_models_scores_however_it_is_masked() -> None:
    torch.manual_seed(0)
    model = MaskedLSTM(vocab_size=3, embedding_size=4, hidden_size=4, feedforward_size=4).double()
    table = audit.tabulated(model, 3)
    for masks in itertools.product([False, True], repeat=3):
        masked_NT = torch.tensor(masks).expand(27, 3)
        if any(masks):
            with torch.no_grad():
                expected = model.masked_logits(every_sequence(3, 3), masked_NT)
            torch.testing.assert_close(table.masked_logits(every_sequence(3, 3), masked_NT), expected)


def test_the_any_order_law_by_hand() -> None:
    model = table_model(num_positions=2, vocab_size=2, seed=1)

    def probs(row: int, place: int) -> torch.Tensor:
        return model.table[place, row].softmax(0)

    # Rows to the base 3, 2 the mask: 8 is both masked, 3 y_1 + 2 and 6 + y_2 have one token.
    expected = [
        (probs(8, 0)[a] * probs(3 * a + 2, 1)[b] + probs(8, 1)[b] * probs(6 + b, 0)[a]) / 2
        for a, b in itertools.product(range(2), repeat=2)
    ]
    torch.testing.assert_close(audit.any_order_law(model, 2), torch.stack(expected))


def true_conditionals() -> tuple[TableModel, torch.Tensor]:
    """The conditionals of palindromes, whatever is masked, and their law."""
    truth = palindromes(vocab_size=3, length=3)
    every = every_sequence(3, 3)
    table = torch.full((3, 4**3, 3), -math.inf, dtype=torch.float64)
    for row, seen in enumerate(every_sequence(4, 3).tolist()):
        fits = torch.tensor([all(s in (3, t) for s, t in zip(seen, tokens, strict=True)) for tokens in every.tolist()])
        for place, token in itertools.product(range(3), range(3)):
            table[place, row, token] = truth.probs_N[fits & (every[:, place] == token)].sum().log()
    return TableModel(table), truth.probs_N


def test_an_order_chosen_by_what_is_revealed_is_right_where_conditionals_belong_to_a_joint() -> None:
    model, probs_N = true_conditionals()
    torch.testing.assert_close(audit.any_order_law(model, 3), probs_N)
    proposal = masked_conditionals(model)
    torch.testing.assert_close(unmasking_law(threshold_decoding(proposal, threshold=1.0), 3).probs_N, probs_N)
    # One that looks at what is drawn is not.
    kept = audit.low_confidence_remasking(proposal, num_iterations=3)
    assert total_variation(unmasking_law(kept, 3).probs_N, probs_N) > 0.1


def test_collisions_by_counting() -> None:
    ways = list(itertools.product(range(4), repeat=3))
    assert audit.collision(4, 3) == pytest.approx(sum(len(set(way)) < 3 for way in ways) / len(ways))
    assert audit.collision(2, 3) == 1


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Two positions, and five steps of training."""
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        models = {"palindromes": palindromes(vocab_size=5, length=2), "random table": None}
        for name, setting in {"LENGTH": 2, "STEPS": 5, "MODELS": models, "VISITS": (1, 16)}.items():
            patch.setattr(audit, name, setting)
        (outcome,) = audit.reproduce(setup(folder, 0, 1))
        assert outcome.files["figure"].exists()
        return read_back(outcome, folder)


@pytest.mark.thorough
def test_a_small_run(small: Table) -> None:
    found = {(result.system, result.measure): result.value for result in small.results}
    assert ("low-confidence remasking, N = 2", "palindromes, passes") in found
    assert all(0 <= value <= 1 for (_, measured), value in found.items() if "to the" in measured)
    assert ("Gibbs, 1 visit", "random table, to the data") not in found
    for model in ("palindromes", "random table"):
        to_model, passes = f"{model}, to the any-order law", f"{model}, passes"
        assert found["random unmasking, N = 2", to_model] < 1e-12 < found["random unmasking, N = 1", to_model]
        assert found["random unmasking, N = 4", passes] == 4 < found["Gibbs, 16 visits", passes] == 17
        # A visit of Metropolis-Hastings evaluates at most the other position, and the first draw took three passes.
        assert 3 < found["Metropolis-Hastings, 16 visits", passes] < 3 + 16
        limit, far = (found[system, to_model] for system in ("exp(-E_local)", "Metropolis-Hastings, 16 visits"))
        assert far == pytest.approx(limit, abs=0.02)


@pytest.mark.thorough
def test_claims_and_theorems_of_a_small_run(small: Table) -> None:
    table = small
    theorems = {claim.text: claim.evidence for claim in table.claims if claim.kind == "theorem"}
    assert len(theorems) == 6 and len(table.claims) == 6 + 3 * 4
    ratio = next(text for text in theorems.values() if text.startswith("largest ratio"))
    assert 0 < float(ratio.rpartition(" ")[2]) <= 1
    nearer = [claim for claim in table.claims if "ReMDM, cap 0.1 is nearer to the any-order law" in claim.text]
    values = [
        [result.value for result in table.results if result.system == f"{family}, N = 16" and "law" in result.measure]
        for family in (audit.DIFFUSION, audit.REMDM)
    ]
    differences = [a - b for a, b in zip(*values, strict=True)]
    assert [claim.numbers[0] for claim in nearer] == pytest.approx(differences)
