"""What many tests sit down with: a tiny Qwen with random weights, its tokenizer, and boards."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from slim_rl.config import MatchingConfig
from slim_rl.engines.local import LocalEngine
from slim_rl.games.matching import MatchingKind, generate_games
from slim_rl.games.matching.board import generate_boards
from slim_rl.games.matching.scripted import demonstrate
from slim_rl.players.chat_format import qwen3_format
from slim_rl.training.tokenizer import chat_corpus, phrase_tokenizer
from slim_rl.training.warmstart import tiny_qwen

torch.set_num_threads(2)


@pytest.fixture(scope="session")
def demonstrations():
    return [demonstrate(board, max_questions=9) for board in generate_boards(64, 1, MatchingConfig())]


@pytest.fixture(scope="session")
def tokenizer(demonstrations):
    return phrase_tokenizer(chat_corpus(demonstrations), MatchingKind.words)


@pytest.fixture(scope="session")
def chat_format(tokenizer):
    return qwen3_format(tokenizer, thinking=False)


@pytest.fixture
def model(tokenizer):
    return tiny_qwen(tokenizer, max_context_tokens=512, seed=0)


@pytest.fixture
def engine(model):
    return LocalEngine(model)


@pytest.fixture(scope="session")
def games():
    return list(generate_games(8, 0, MatchingConfig()))
