"""Which demonstrations the tiny model is shown."""

import yaml

from slim_rl.games.matching import MatchingKind
from stages import base_model


def test_the_last_seat_is_shown_alone_first_and_every_seat_has_its_phrases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parameters = {
        "seating": {"players": ["policy", "policy"]},
        "warmstart": {"demonstrations": 16, "batch": 4, "last_seat_demonstrations": 8},
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters))
    seats, trees, demonstrate = [], [], MatchingKind.demonstrate

    def noted(kind, line, seat):
        seats.append(seat)
        return demonstrate(kind, line, seat)

    def imitate(warm, model, batches, folder):
        seats.clear()
        trees.extend(tree for step in range(4) for tree in batches(step))

    monkeypatch.setattr(base_model, "TOKENIZER_GAMES", 8)
    monkeypatch.setattr(MatchingKind, "demonstrate", noted)
    monkeypatch.setattr(base_model, "imitate", imitate)
    base_model.main()
    agent, partner = MatchingKind.seats
    assert seats == [partner] * 8 + [agent, partner] * 4
    # Spelt in bytes, a dialogue of the seat that the tokenizer was not made for has some 700 tokens.
    assert max(len(tree.ids) for tree in trees) < 300
