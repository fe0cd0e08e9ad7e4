"""`anncur train cross-encoder`, `anncur train dual-encoder` and `anncur distill`: make models of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from anncur.cli.frame import DebugOption, JsonOption, at_the_edge, console, print_json, show_progress
from anncur.cli.options import IndexArgument, SeedOption, needs_extra
from anncur.index.index import Index
from anncur.numbers import whole_number

if TYPE_CHECKING:
    from anncur.training.loop import LogRow

Settings = TypeVar("Settings")

DataArgument = Annotated[Path, typer.Argument(help="A folder in ZESHEL's layout: documents/ and mentions/.")]
OutOption = Annotated[Path, typer.Option("--out", help="The model's folder; the same command again resumes there.")]
NetworkOption = Annotated[
    str | None, typer.Option("--network", help="Where the weights start: minilm, a folder, or a name on the hub.")
]
LayersOption = Annotated[int | None, typer.Option("--layers", help="Keep only the first layers of the network.")]
PresetOption = Annotated[str, typer.Option("--preset", help="Where the other options start from: small or paper.")]
MentionsOption = Annotated[
    int | None, typer.Option("--mentions", help="Mentions to train on, drawn at random; all by default.")
]
WorldsOption = Annotated[list[str] | None, typer.Option("--world", help="Train on this world; may be repeated.")]
ShortOption = Annotated[
    float, typer.Option("--short-contexts", help="Share of mentions that lose most of their context, 0 to 1.")
]
DevOption = Annotated[
    int, typer.Option("--dev-mentions", help="Mentions of each world of the split val, to choose the best model by.")
]
NegativesOption = Annotated[int | None, typer.Option("--negatives", help="Negatives for each gold entity.")]
PoolOption = Annotated[int | None, typer.Option("--pool", help="Draw negatives from this many of the best.")]
RandomShareOption = Annotated[
    float | None, typer.Option("--random-share", help="Share of negatives that are drawn from all entities.")
]
QueryLengthOption = Annotated[int | None, typer.Option("--query-length", help="Tokens of a query at most.")]
ItemLengthOption = Annotated[int | None, typer.Option("--item-length", help="Tokens of an item at most.")]
LayoutOption = Annotated[
    str | None, typer.Option("--layout", help="contiguous, or fixed-offset as in the paper's code.")
]
EpochsOption = Annotated[int | None, typer.Option("--epochs", help="Passes over the training data.")]
RateOption = Annotated[float | None, typer.Option("--learning-rate", help="The highest, after the warm-up.")]
EvaluationsOption = Annotated[int | None, typer.Option("--evaluations", help="Evaluations in each epoch.")]
PatienceOption = Annotated[
    int | None, typer.Option("--patience", help="Stop after this many evaluations without a better one.")
]
BatchOption = Annotated[int | None, typer.Option("--mentions-per-batch", help="Mentions in a step.")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="Threads of torch; all cores by default.")]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", help="Where mined negatives and a teacher's scores are kept.")
]

train = typer.Typer(name="train", help="Train a cross-encoder or a dual encoder.", no_args_is_help=True)


@train.command(name="cross-encoder")
@at_the_edge
def cross_encoder(
    data: DataArgument,
    out: OutOption,
    head: Annotated[
        Literal["emb", "cls"], typer.Option("--head", help="Score by the states of marks, or by the pooled [CLS].")
    ] = "emb",
    preset: PresetOption = "small",
    network: NetworkOption = None,
    layers: LayersOption = None,
    width: Annotated[int | None, typer.Option("--width", help="Make new layers of this smaller width.")] = None,
    teacher: Annotated[
        Path | None, typer.Option("--teacher", help="A larger cross-encoder whose scores to match.")
    ] = None,
    gold_weight: Annotated[
        float, typer.Option("--gold-weight", help="Weight of the gold entities beside a teacher's scores, 0 to 1.")
    ] = 0.5,
    negative_kind: Annotated[
        Literal["random", "tfidf", "mined"], typer.Option("--negative-kind", help="How negatives are found.")
    ] = "mined",
    dual_encoder: Annotated[
        str,
        typer.Option("--dual-encoder", help="Mines negatives and held-out candidates: minilm, or a folder."),
    ] = "minilm",
    negatives: NegativesOption = None,
    pool: PoolOption = None,
    random_share: RandomShareOption = None,
    world: WorldsOption = None,
    mentions: MentionsOption = None,
    dev_mentions: DevOption = 60,
    short_contexts: ShortOption = 0.0,
    query_length: QueryLengthOption = None,
    item_length: ItemLengthOption = None,
    layout: LayoutOption = None,
    epochs: EpochsOption = None,
    learning_rate: RateOption = None,
    evaluations: EvaluationsOption = None,
    patience: PatienceOption = None,
    mentions_per_batch: BatchOption = None,
    threads: ThreadsOption = None,
    cache: CacheOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a cross-encoder to pick a mention's entity among negatives, or to match the scores of a teacher.

    It can be stopped at any moment: the same command resumes it. The folder holds the best model of all evaluations on
    the split val, a log in training.jsonl and its plot in training.png.

    Examples:

    - `anncur train cross-encoder my-data --head emb --out my-model`
    - `anncur train cross-encoder my-data --teacher my-model --layers 2 --out small-model`
    - `anncur train cross-encoder zeshel --preset paper --head cls --out cls-model`
    """
    with needs_extra("train"):
        from anncur.training import jobs
    chosen = jobs.preset(preset)
    job = jobs.CrossEncoderJob(
        data=jobs.DataSettings(
            data, train_worlds=world, mentions=mentions, dev_mentions=dev_mentions, short_contexts=short_contexts
        ),
        network=network or chosen.network,
        head=head,
        layers=layers,
        width=width,
        text=_given(chosen.text, query_length=query_length, item_length=item_length, layout=layout),
        negative_kind=negative_kind,
        negatives=_given(chosen.negatives, n=negatives, pool=pool, random_share=random_share),
        dual_encoder=dual_encoder,
        mentions_per_batch=chosen.cross_encoder_batch if mentions_per_batch is None else mentions_per_batch,
        teacher=teacher,
        gold_weight=gold_weight,
        train=_given(
            chosen.train,
            epochs=epochs,
            learning_rate=learning_rate,
            evaluations=evaluations,
            patience=patience,
            seed=seed,
        ),
    )
    _run(partial(jobs.train_cross_encoder, job, out, cache=cache), out, threads, as_json=as_json)


@train.command(name="dual-encoder")
@at_the_edge
def dual_encoder(
    data: DataArgument,
    out: OutOption,
    preset: PresetOption = "small",
    network: NetworkOption = None,
    layers: LayersOption = None,
    dual_encoder: Annotated[
        str, typer.Option("--dual-encoder", help="Mines the held-out candidates: minilm, or a dual encoder's folder.")
    ] = "minilm",
    negatives: NegativesOption = None,
    pool: PoolOption = None,
    random_share: RandomShareOption = None,
    world: WorldsOption = None,
    mentions: MentionsOption = None,
    dev_mentions: DevOption = 60,
    short_contexts: ShortOption = 0.0,
    query_length: QueryLengthOption = None,
    item_length: ItemLengthOption = None,
    epochs: EpochsOption = None,
    learning_rate: RateOption = None,
    evaluations: EvaluationsOption = None,
    patience: PatienceOption = None,
    mentions_per_batch: BatchOption = None,
    threads: ThreadsOption = None,
    cache: CacheOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a dual encoder on gold links: with random negatives in the first epoch, then with those it mines itself.

    Examples:

    - `anncur train dual-encoder my-data --out base`
    - `anncur train dual-encoder zeshel --preset paper --out base`
    """
    with needs_extra("train"):
        from anncur.training import jobs
    chosen = jobs.preset(preset)
    job = jobs.DualEncoderJob(
        data=jobs.DataSettings(
            data, train_worlds=world, mentions=mentions, dev_mentions=dev_mentions, short_contexts=short_contexts
        ),
        network=network or chosen.network,
        head=chosen.dual_encoder_head,
        is_shared=chosen.has_shared_towers,
        layers=layers,
        text=_given(chosen.text, query_length=query_length, item_length=item_length),
        negatives=_given(chosen.negatives, n=negatives, pool=pool, random_share=random_share),
        dual_encoder=dual_encoder,
        mentions_per_batch=chosen.dual_encoder_batch if mentions_per_batch is None else mentions_per_batch,
        train=_given(
            chosen.train,
            epochs=epochs,
            learning_rate=learning_rate,
            evaluations=evaluations,
            patience=patience,
            seed=seed,
        ),
    )
    _run(partial(jobs.train_dual_encoder, job, out, cache=cache), out, threads, as_json=as_json)


def distill(
    index: IndexArgument,
    out: OutOption,
    start: Annotated[
        str, typer.Option("--start", help="Where the weights start: a trained dual encoder's folder, or a network.")
    ] = "minilm",
    loss: Annotated[
        Literal["match", "pair", "best"],
        typer.Option("--loss", help="One of the two losses, or the better one on held-out queries."),
    ] = "best",
    preset: PresetOption = "small",
    n_top: Annotated[
        int | None, typer.Option("--n-top", help="Items of each query to train on, the scorer's best.")
    ] = None,
    epochs: EpochsOption = None,
    learning_rate: RateOption = None,
    queries_per_batch: Annotated[int, typer.Option("--queries-per-batch", help="Queries in a step.")] = 1,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Distil a dual encoder from the exact scores that an index was built from.

    Examples:

    - `anncur distill my.anncur --start base --out base+ce`
    - `anncur distill my.anncur --loss match --epochs 10 --out scratch+ce`
    """
    with needs_extra("train"):
        from anncur.training import distillation, jobs
    chosen = jobs.preset(preset)
    opened = Index.open(index)
    scored = distillation.ScoredQueries(opened.anchor_queries, list(opened), opened.anchor_scores().T)
    job = distillation.DistillationJob(
        start=start,
        loss=loss,
        n_top=chosen.n_top if n_top is None else n_top,
        queries_per_batch=queries_per_batch,
        text=chosen.text,
        train=_given(chosen.distillation, epochs=epochs, learning_rate=learning_rate, seed=seed),
    )
    _run(partial(distillation.distill, job, scored, out), out, threads, as_json=as_json)


def _run(train: Callable[..., list[LogRow]], out: Path, threads: int | None, *, as_json: bool) -> None:
    """Run a training, print its rows as they come, and draw them."""
    import torch

    from anncur.training.loop import ignore_row
    from anncur.training.plot import draw_log

    if threads is not None:
        torch.set_num_threads(whole_number("threads", threads, least=1))
    with show_progress(as_json=as_json) as progress:
        rows = train(progress=progress, on_row=ignore_row if as_json else _print_row)
    plot = draw_log(rows, out / "training.png")
    best = max(rows, key=lambda row: row.dev)
    if as_json:
        print_json({"path": str(out), "best": asdict(best), "rows": [asdict(row) for row in rows], "plot": plot})
    else:
        drawn = f" The plot is {plot}." if plot else " (No plot: pip install 'anncur[plots]'.)"
        console().print(f"{out} holds the best model: {best.dev:.3f} at step {best.step}.{drawn}", markup=False)


def _print_row(row: LogRow) -> None:
    best = "  best so far" if row.is_best else ""
    loss = "     -" if row.loss is None else f"{row.loss:6.3f}"
    line = f"epoch {row.epoch + 1}  step {row.step:>6,}  loss {loss}  held-out {row.dev:.3f}{best}"
    console().print(line, markup=False)


def _given(settings: Settings, **options: Any) -> Settings:
    """Settings with the options that were given."""
    return replace(settings, **{name: value for name, value in options.items() if value is not None})  # type: ignore[type-var]
