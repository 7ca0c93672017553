"""`params.yaml` as typed, frozen models: the one place where a parameter has its name and bounds."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from rapidfuzz import process

from slim_rl.errors import UserError


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class MatchingConfig(Section):
    """The boards of the paper-reviewer matching game.

    Fields left out take the values that belong to the selection: `dialop` is DialOp's own game
    (both players see .4 of the cells on private scales), `stakes` the one that does not leak.
    """

    size: int = Field(3, ge=2, le=8)
    """Reviewers, and as many papers."""
    selection: Literal["stakes", "dialop"] = "stakes"
    """Which boards are kept; see `slim_rl.games.matching.board`."""
    p_agent: float = Field(0.2, ge=0, le=1)
    """Probability that player 1 sees a cell."""
    p_partner: float = Field(0.8, ge=0, le=1)
    """Probability that player 2 sees a cell."""
    scale_range: tuple[float, float] = (1.0, 1.0)
    """Bounds of each player's private scale factor, drawn uniformly."""
    stake: float = Field(1.4, ge=1)
    """How many times the pooled optimum must beat the yardstick: for `stakes` the mean over all
    assignments, for `dialop` what either player would choose alone."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_selection(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("selection") == "dialop":
            faithful = dict(p_agent=0.4, p_partner=0.4, scale_range=(1.0, 10.0), stake=1.25)
            return {**faithful, **given}
        return given

    @model_validator(mode="after")
    def _scales_in_order(self) -> "MatchingConfig":
        low, high = self.scale_range
        if not 1 <= low <= high:
            raise ValueError(f"scale_range must be two numbers with 1 <= low <= high, not {low}, {high}")
        return self


class GamesConfig(Section):
    """How many games there are, and how long one may take."""

    format: Literal["jsonl", "parquet"] = "jsonl"
    """Of the games files."""
    on_the_fly: bool = False
    """Write no boards, only the seeds from which they are made when a game is played."""
    train_count: int = Field(4096, ge=1)
    eval_count: int = Field(1024, ge=1)
    max_turns: int = Field(20, ge=2)
    """Turns of both players together; then the game ends without a reward."""


PlayerName = Annotated[str, Field(pattern=r"^(policy|scripted|random|chat|pool|checkpoint:.+)$")]


class SeatingConfig(Section):
    """Who sits in each seat while the policy is trained."""

    players: tuple[PlayerName, ...] | None = None
    """In the order of the game's seats: `policy`; `scripted`, `random`; `chat`, the model that `partner` describes;
    `checkpoint:PATH`, a frozen model; `pool`, an earlier self, see `train.snapshot_every`. Without a list, the
    policy and whoever `partner.kind` names."""
    alternate: bool = False
    """Move everybody on by one seat from game to game, so that the policy learns all sides."""

    @model_validator(mode="after")
    def _the_policy_plays(self) -> "SeatingConfig":
        if self.players is not None and "policy" not in self.players:
            raise ValueError("one of players must be policy, or there is nobody to train")
        return self


class TextArenaConfig(Section):
    """The games that come from TextArena."""

    illegal_moves: Literal["textarena", "spiral"] = "textarena"
    """`textarena`: its own rules, mostly one more try and then the game is lost; `spiral`: the game ends at
    once, -1.5 for who made the move and 0.5 for the other one."""
    opening_moves: int = Field(0, ge=0)
    """Games to train on begin after so many random legal moves at most, drawn for each game: a policy that plays
    itself then sees more of the game than its own ways."""


class PartnerConfig(Section):
    """Who sits opposite the agent."""

    kind: Literal["scripted", "chat"] = "scripted"
    always_accept: bool = True
    """Accept every full proposal, so that the reward measures the agent's proposal alone."""

    # Of `kind: chat`, a model behind an OpenAI-compatible API; its key is read from OPENAI_API_KEY.
    model: str = "gpt-4.1"
    base_url: str = Field("https://api.openai.com/v1", pattern=r"^https?://[^\s@]+$")
    temperature: float = Field(0.0, ge=0, le=2)
    max_reply_tokens: int = Field(120, ge=1)
    """A longer turn is asked for once more."""
    cache: bool = False
    """Answer a call that was made before from disk; a dialogue with the same words and seed costs nothing."""
    max_requests_per_minute: int | None = Field(500, ge=1)
    """This and the next: what OpenAI's lowest paid tier allows for gpt-4.1; null for no limit."""
    max_tokens_per_minute: int | None = Field(30_000, ge=1)
    max_concurrent: int = Field(64, ge=1)
    """Calls under way at once."""
    timeout_seconds: float = Field(60.0, gt=0)
    """A call that takes longer is made again."""
    max_retries: int = Field(6, ge=0)
    """Calls after the first for one turn; then the episode has failed."""
    max_cost_dollars: float | None = Field(None, gt=0)
    """What one stage may spend, its interruptions included; then it stops, to be resumed. null for no limit."""


_PACE = {
    "cache",
    "max_requests_per_minute",
    "max_tokens_per_minute",
    "max_concurrent",
    "timeout_seconds",
    "max_retries",
    "max_cost_dollars",
}


class ModelConfig(Section):
    """The model that is trained."""

    base: str = "tiny"
    """`tiny`, made on the spot by imitation; or a Hugging Face checkpoint, by path or hub name."""
    layers: int = Field(3, ge=1)
    hidden_size: int = Field(128, ge=32)
    initializer_range: float = Field(0.05, gt=0)
    """Standard deviation of the first weights. These three are the tiny model's."""
    thinking: bool = False
    """Whether the policy may think before it speaks; its thoughts are trained, and seen by nobody."""
    context_tokens: int = Field(512, ge=64)
    """The tiny model's context, and the longest dialogue with SLIME; else a checkpoint brings its own."""
    turn_tokens: int = Field(32, ge=1)
    """A turn is cut after so many."""


class WarmstartConfig(Section):
    """Imitation, for the tiny model."""

    demonstrations: int = Field(28_800, ge=1)
    batch: int = Field(8, ge=1)
    """Demonstrations an optimiser step."""
    learning_rate: float = Field(2.5e-3, gt=0)
    warmup_steps: int = Field(100, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    stop_probability: float = Field(0.55, gt=0, lt=1)
    """How often a demonstrator who may close does so instead of going on; in the matching game's first seat it asks
    1 / this - 1 questions a game."""
    max_questions: int = Field(9, ge=1)
    """Proposing and how to ask are taught up to so many questions, and the second seat is asked no more."""
    last_seat_demonstrations: int = Field(0, ge=0)
    """The first so many demonstrations are all of the last seat that the policy takes; then its seats alternate.
    Without effect if it takes one seat."""
    checkpoint_every: int = Field(40, ge=1)
    """Steps between checkpoints to go on from after an interruption."""

    @model_validator(mode="after")
    def _every_seat_is_shown(self) -> "WarmstartConfig":
        if self.last_seat_demonstrations >= self.demonstrations:
            raise ValueError("last_seat_demonstrations must be less than demonstrations")
        return self


FilterName = Literal[
    "no_failed_episode",
    "reward_varies",
    "any_success",
    "min_reward",
    "reasonable_length",
    "responses_differ",
    "quality_and_diversity",
]
"""See `slim_rl.rollout.filters`."""
ReferenceName = Annotated[str, Field(pattern=r"^(random|own-view|bayes|asks-\d+-(random|useful|table))$")]
"""See `slim_rl.games.matching.scripted.reference_player`."""


class TrainConfig(Section):
    """GRPO."""

    backend: Literal["local", "slime"] = "local"
    """`local`: this machine; `slime`: SLIME on a cluster, see `SlimeConfig`."""
    steps: int = Field(100, ge=1)
    games_per_step: int = Field(8, ge=1)
    samples_per_game: int = Field(16, ge=1)
    temperature: float = Field(1.0, gt=0)
    filters: tuple[FilterName, ...] = ("no_failed_episode", "reward_varies")
    """Groups that any of these drops are replaced by groups of further games."""
    max_oversampling: float = Field(2.0, ge=1)
    """Stop looking for full batches after so many times the games a step needs (`local` alone)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the layers' matrices, AdamW for the rest."""
    learning_rate: float = Field(2e-4, gt=0)
    warmup_steps: int = Field(5, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    minibatches: int = Field(1, ge=1)
    """Optimiser steps for each batch of episodes."""
    advantage: Literal["group", "role", "return"] = "group"
    """`group`: the reward compared with those of the same game and seat (GRPO); `role`: with a moving average of
    what the seat has earned so far (SPIRAL); `return`: with nothing."""
    divide_by_std: bool = True
    """GRPO's advantage; without it Dr. GRPO's."""
    role_baseline_decay: float = Field(0.95, ge=0, lt=1)
    """How much of the moving average stays after one more reward."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the base model; 0 keeps no reference model in memory."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of a bonus for the entropy of every sampled token's distribution: keeps the policy exploring, and
    self-play from running in circles."""
    averaging_decay: float = Field(0.0, ge=0, lt=1)
    """Of a moving average of the weights over training steps; above 0 that average is the trained model and the
    snapshots. In self-play weights go in circles around what their average comes to."""
    average_over: Literal["tokens", "episodes"] = "tokens"
    """What counts the same in the loss: every token, or every episode, however many seats were trained in it."""
    microbatch_tokens: int = Field(8192, ge=1)
    """Padded tokens in one forward and backward pass; bounds memory, and changes only the last digits."""
    checkpoint_every: int = Field(1, ge=1)
    snapshot_every: int | None = Field(None, ge=1)
    """Steps between frozen copies, from the first step on: opponents, and earlier selves to be evaluated."""
    pool_size: int = Field(0, ge=0)
    """So many of the newest snapshots are the opponents that the player `pool` is drawn from."""
    opponents: Literal["uniform", "win_rate"] = "uniform"
    """How it is drawn: all alike, or those first that the policy loses to."""

    @model_validator(mode="after")
    def _minibatches_are_equal(self) -> "TrainConfig":
        if self.games_per_step * self.samples_per_game % self.minibatches:
            raise ValueError("games_per_step times samples_per_game must be a multiple of minibatches")
        return self

    @model_validator(mode="after")
    def _groups_have_members(self) -> "TrainConfig":
        if self.samples_per_game == 1 and (self.advantage == "group" or "reward_varies" in self.filters):
            raise ValueError(
                "with samples_per_game 1 there is nothing to compare with in a group: take another "
                "advantage than group, and filters without reward_varies"
            )
        return self


class SlimeConfig(Section):
    """How SLIME trains (`train.backend: slime`): which GPUs do what. What is trained stands in `train`."""

    directory: str | None = None
    """SLIME's source (github THUDM/slime, v0.3.1); Megatron-LM's is looked for beside it."""
    python: str = "python3"
    """The Python that has what SLIME needs, Ray too; in SLIME's container image /usr/bin/python3."""
    ray_address: str | None = Field(None, pattern=r"^https?://")
    """Where an existing cluster takes jobs (http://HEAD:8265); without it, and without RAY_API_SERVER_ADDRESS
    in the environment, a cluster of this machine is started for the run."""
    nodes: int = Field(1, ge=1)
    """Nodes that train."""
    gpus_per_node: int = Field(8, ge=1)
    colocate: bool = True
    """Sample on the GPUs that train, by turns."""
    rollout_gpus: int | None = Field(None, ge=1)
    """GPUs that sample only, if not colocated."""
    gpus_per_engine: int = Field(1, ge=1)
    """GPUs that one SGLang engine spans."""
    external_engines: tuple[str, ...] = ()
    """HOST:PORT of SGLang engines that run already, in place of SLIME's own."""
    tensor_parallel: int = Field(1, ge=1)
    context_parallel: int = Field(1, ge=1)
    max_tokens_per_gpu: int = Field(8192, ge=1)
    """In one forward and backward pass; bounds memory."""
    sglang_memory_fraction: float = Field(0.7, gt=0, lt=1)
    """Of a GPU, for SGLang's weights and cache."""
    retry_seconds: float = Field(900, gt=0)
    """An engine that does not answer is tried again for so long; then the episode has failed."""
    request_timeout_seconds: float = Field(300, gt=0)
    """A request without an answer counts as hung after so long, and is sent again."""
    partial_rollout: bool = False
    """Keep the dialogues that are under way when a rollout is full, and go on with them in the next one."""
    save_every: int = Field(20, ge=1)
    """Steps between checkpoints."""
    evaluate_every: int | None = Field(None, ge=1)
    """Steps between rollouts on the held-out games; none without it."""
    wandb_project: str | None = None
    arguments: tuple[str, ...] = ()
    """Further arguments for SLIME, Megatron or SGLang (`--sglang-...`), as on the command line; the last word."""

    @model_validator(mode="after")
    def _somewhere_to_sample(self) -> "SlimeConfig":
        if self.external_engines or self.colocate == (self.rollout_gpus is None):
            return self
        raise ValueError("give rollout_gpus if colocate is false, and only then")

    @model_validator(mode="after")
    def _hung_requests_are_sent_again(self) -> "SlimeConfig":
        if self.request_timeout_seconds >= self.retry_seconds:
            raise ValueError("request_timeout_seconds must be less than retry_seconds")
        return self


class EvaluateConfig(Section):
    temperature: float = Field(1.0, ge=0)
    server: str | None = Field(None, pattern=r"\{model\}.*\{port\}|\{port\}.*\{model\}")
    """Command line of a server that speaks SGLang's HTTP interface, with {model} and {port} in it, to play the
    checkpoints with; without it the local engine does. For models that it cannot hold or does not know."""
    references: tuple[ReferenceName, ...] = ("random", "own-view", "bayes")
    """Scripted players on the same boards."""
    human_references: tuple[ReferenceName, ...] = ("random", "own-view", "bayes")
    """Scripted players on the boards that people played."""
    intervention_games: int = Field(512, ge=0)
    """Held-out boards, from the first on, that base and trained model also play with questions forbidden and
    with 0 to 6 questions forced; see `slim_rl.evaluation.intervention`."""
    probe_games: int = Field(64, ge=1)
    """Held-out boards on which the partner's shyness is probed."""

    # Of games with winners.
    opponents: tuple[Annotated[str, Field(pattern=r"^\w+$")], ...] = ()
    """Whom everybody is measured against: players that the game knows by name; by default all it has for that."""
    snapshot_games: int = Field(100, ge=1)
    """Games that a pair plays in each seating; those of the trained model with another that is no snapshot are
    all that are held out."""
    ranked: int = Field(4, ge=0)
    """Snapshots that also play each other."""


class Config(Section):
    """All of `params.yaml`."""

    seed: int = Field(0, ge=0)
    threads: int = Field(2, ge=1)
    """Of torch; another number changes the last digits of sums, and with them the sampled episodes."""
    concurrency: int = Field(256, ge=1)
    """Episodes played at once."""
    game: str = Field("matching", pattern=r"^[a-z_]+(:.+)?$")
    """A folder of `slim_rl/games`, and after a colon what that folder wants to know: textarena:Nim-v0."""
    seating: SeatingConfig = SeatingConfig()
    board: MatchingConfig = MatchingConfig()
    games: GamesConfig = GamesConfig()
    textarena: TextArenaConfig = TextArenaConfig()
    partner: PartnerConfig = PartnerConfig()
    model: ModelConfig = ModelConfig()
    warmstart: WarmstartConfig = WarmstartConfig()
    train: TrainConfig = TrainConfig()
    slime: SlimeConfig = SlimeConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    def work_inputs(self, *sections: str) -> dict[str, Any]:
        """What unfinished work belongs to: the values of `sections`, or of all, without those that say how
        fast the partner is asked and what it may cost. These may change before work is resumed."""
        return self.model_dump(mode="json", include=set(sections) or None, exclude={"partner": _PACE})

    @property
    def players(self) -> tuple[str, ...]:
        """Who sits in each seat while the policy is trained."""
        return self.seating.players or ("policy", self.partner.kind)

    @property
    def opposite(self) -> str:
        """Who sits opposite a model that is evaluated in a game with a partner."""
        return next((name for name in self.players if name in ("scripted", "chat")), self.partner.kind)

    @property
    def needs_service(self) -> bool:
        """Whether anybody is seated who must be paid."""
        # The matching game's evaluation seats a partner, too; games with winners have opponents there.
        return "chat" in self.players or (self.game == "matching" and self.opposite == "chat")

    def seated(self, number: int) -> tuple[str, ...]:
        """The players in the game of this number, in the order of its seats."""
        shift = number % len(self.players) if self.seating.alternate else 0
        return self.players[shift:] + self.players[:shift]

    @model_validator(mode="after")
    def _a_pool_has_snapshots(self) -> "Config":
        if "pool" not in self.players:
            return self
        if not (self.train.snapshot_every and self.train.pool_size and self.train.backend == "local"):
            raise ValueError(
                "the player pool needs train.snapshot_every, a train.pool_size above 0 and train.backend: local"
            )
        return self

    @model_validator(mode="after")
    def _interrupted_groups_can_be_kept(self) -> "Config":
        # SLIME puts groups aside sample by sample; a finished episode of two policies is a list of them.
        if self.slime.partial_rollout and self.players.count("policy") > 1:
            raise ValueError("slime.partial_rollout must be false if the policy takes more than one seat")
        return self

    @model_validator(mode="after")
    def _slime_neither_averages_nor_has_muon(self) -> "Config":
        if self.train.backend == "slime" and self.train.averaging_decay:
            raise ValueError("train.averaging_decay needs train.backend: local")
        if self.train.backend == "slime" and self.train.optimizer == "muon":
            raise ValueError("train.optimizer: muon needs train.backend: local")
        return self

    @model_validator(mode="after")
    def _failed_episodes_are_not_trained_on(self) -> "Config":
        if self.train.backend == "slime" and "no_failed_episode" not in self.train.filters:
            raise ValueError("train.filters must have no_failed_episode with train.backend: slime")
        return self


def load_config(path: Path = Path("params.yaml")) -> Config:
    """Read and check the parameters.

    Raises:
        UserError: the file is missing or not YAML, or a parameter is unknown, of the wrong type or out of
            bounds; the sentence names it.
    """
    try:
        return Config.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(map(_sentence, error.errors())) + ".") from None


def _sentence(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] != "extra_forbidden":
        return f"{name} is {error['input']!r}: {reason}" if name else reason
    section: Any = Config
    for part in error["loc"][:-1]:
        section = section.model_fields[part].annotation
    near = process.extractOne(str(error["loc"][-1]), list(section.model_fields), score_cutoff=60)
    return f"there is no parameter {name}" + (f"; is it {near[0]} that was meant?" if near else "")
