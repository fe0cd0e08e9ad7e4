"""`anncur train cross-encoder`, `anncur train dual-encoder` and `anncur distill`: make models of one's own."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from anncur.cli.frame import DebugOption, JsonOption, at_the_edge, console, print_json, show_progress
from anncur.cli.options import IndexArgument, SeedOption, needs_extra
from anncur.index.index import Index
from anncur.numbers import whole_number

DataArgument = Annotated[Path, typer.Argument(help="A folder in ZESHEL's layout: documents/ and mentions/.")]
OutOption = Annotated[Path, typer.Option("--out", help="The model's folder; the same command again goes on there.")]
NetworkOption = Annotated[
    str | None, typer.Option("--network", help="Where the weights start: minilm, a folder, or a name on the hub.")
]
LayersOption = Annotated[int | None, typer.Option("--layers", help="Keep only the first layers of the network.")]
PresetOption = Annotated[str, typer.Option("--preset", help="Where the other options start from: small or paper.")]
MentionsOption = Annotated[int | None, typer.Option("--mentions", help="Train on so many, drawn; all by default.")]
WorldsOption = Annotated[list[str] | None, typer.Option("--world", help="Train on this world; may be repeated.")]
ShortOption = Annotated[
    float, typer.Option("--short-contexts", help="The share of mentions that lose most of their context, 0 to 1.")
]
DevOption = Annotated[int, typer.Option("--dev-mentions", help="Of each world of the split val, to choose by.")]
NegativesOption = Annotated[int | None, typer.Option("--negatives", help="Wrong entities for each right one.")]
PoolOption = Annotated[int | None, typer.Option("--pool", help="Draw negatives from the best so many wrong ones.")]
RandomShareOption = Annotated[
    float | None, typer.Option("--random-share", help="The share of negatives that are drawn from all entities.")
]
QueryLengthOption = Annotated[int | None, typer.Option("--query-length", help="Tokens of a query at most.")]
ItemLengthOption = Annotated[int | None, typer.Option("--item-length", help="Tokens of an item at most.")]
LayoutOption = Annotated[
    str | None, typer.Option("--layout", help="contiguous, or fixed-offset as the paper's authors had it.")
]
EpochsOption = Annotated[int | None, typer.Option("--epochs")]
RateOption = Annotated[float | None, typer.Option("--learning-rate")]
EvaluationsOption = Annotated[int | None, typer.Option("--evaluations", help="So many in each epoch.")]
PatienceOption = Annotated[int | None, typer.Option("--patience", help="Stop after so many that were no better.")]
BatchOption = Annotated[int | None, typer.Option("--batch", help="Mentions in a step.")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="Of torch; all cores by default.")]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", help="Where mined negatives and a teacher's scores are kept.")
]

train = typer.Typer(name="train", help="Train a cross-encoder or a dual encoder.", no_args_is_help=True)


@train.command(name="cross-encoder")
@at_the_edge
def cross_encoder(
    data: DataArgument,
    out: OutOption,
    head: Annotated[str, typer.Option("--head", help="emb or cls: where the score is read.")] = "emb",
    preset: PresetOption = "small",
    network: NetworkOption = None,
    layers: LayersOption = None,
    width: Annotated[int | None, typer.Option("--width", help="Narrower than the network: new layers.")] = None,
    teacher: Annotated[Path | None, typer.Option("--teacher", help="A larger cross-encoder to agree with.")] = None,
    gold_weight: Annotated[
        float, typer.Option("--gold-weight", help="What right answers count beside a teacher's scores, 0 to 1.")
    ] = 0.5,
    negative_kind: Annotated[str, typer.Option("--negative-kind", help="random, tfidf or mined.")] = "mined",
    dual_encoder: Annotated[
        str,
        typer.Option("--dual-encoder", help="Finds candidates to judge by, and mines negatives: minilm, or a folder."),
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
    batch: BatchOption = None,
    threads: ThreadsOption = None,
    cache: CacheOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a cross-encoder to pick a mention's entity among wrong ones, or to agree with a teacher.

    It can be stopped at any moment: run the same again, and it goes on where it was. The folder holds the best model of
    all evaluations on the split val, a log in training.jsonl and its picture in training.png.

    Examples:

    - `anncur train cross-encoder my-data --head emb --out my-model`
    - `anncur train cross-encoder my-data --teacher my-model --layers 2 --out small-model`
    - `anncur train cross-encoder zeshel --preset paper --head cls --out cls-model`
    """
    with needs_extra("train"):
        from anncur.training.jobs import CrossEncoderJob, DataSettings, train_cross_encoder
        from anncur.training.presets import preset as preset_of
    chosen = preset_of(preset)
    job = CrossEncoderJob(
        data=DataSettings(
            data, train_worlds=world, mentions=mentions, dev_mentions=dev_mentions, short_contexts=short_contexts
        ),
        network=network or chosen.network,
        head=_one_of("--head", head, "emb", "cls"),
        layers=layers,
        width=width,
        text=_given(chosen.text, query_length=query_length, item_length=item_length, layout=layout),
        kind=_one_of("--negative-kind", negative_kind, "random", "tfidf", "mined"),
        negatives=_given(chosen.negatives, n=negatives, pool=pool, random_share=random_share),
        dual_encoder=dual_encoder,
        mentions_per_batch=chosen.cross_encoder_batch if batch is None else batch,
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
    _run(lambda told: train_cross_encoder(job, out, cache=cache, **told), out, threads, as_json=as_json)


@train.command(name="dual-encoder")
@at_the_edge
def dual_encoder(
    data: DataArgument,
    out: OutOption,
    preset: PresetOption = "small",
    network: NetworkOption = None,
    layers: LayersOption = None,
    dual_encoder: Annotated[
        str, typer.Option("--dual-encoder", help="Finds the candidates held out: minilm, or a dual encoder's folder.")
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
    batch: BatchOption = None,
    threads: ThreadsOption = None,
    cache: CacheOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a dual encoder on gold links: random negatives in the first epoch, then its own best wrong ones.

    Examples:

    - `anncur train dual-encoder my-data --out base`
    - `anncur train dual-encoder zeshel --preset paper --out base`
    """
    with needs_extra("train"):
        from anncur.training.jobs import DataSettings, DualEncoderJob, train_dual_encoder
        from anncur.training.presets import preset as preset_of
    chosen = preset_of(preset)
    job = DualEncoderJob(
        data=DataSettings(
            data, train_worlds=world, mentions=mentions, dev_mentions=dev_mentions, short_contexts=short_contexts
        ),
        network=network or chosen.network,
        head=chosen.dual_encoder_head,
        is_shared=chosen.has_shared_towers,
        layers=layers,
        text=_given(chosen.text, query_length=query_length, item_length=item_length),
        negatives=_given(chosen.negatives, n=negatives, pool=pool, random_share=random_share),
        dual_encoder=dual_encoder,
        mentions_per_batch=chosen.dual_encoder_batch if batch is None else batch,
        train=_given(
            chosen.train,
            epochs=epochs,
            learning_rate=learning_rate,
            evaluations=evaluations,
            patience=patience,
            seed=seed,
        ),
    )
    _run(lambda told: train_dual_encoder(job, out, cache=cache, **told), out, threads, as_json=as_json)


def distill(
    index: IndexArgument,
    out: OutOption,
    start: Annotated[
        str, typer.Option("--from", help="A trained dual encoder's folder, or minilm or another network.")
    ] = "minilm",
    loss: Annotated[str, typer.Option("--loss", help="match, pair, or the best of both on held-out queries.")] = "best",
    preset: PresetOption = "small",
    n_top: Annotated[int | None, typer.Option("--top", help="Learn from the scorer's best so many items.")] = None,
    epochs: EpochsOption = None,
    learning_rate: RateOption = None,
    batch: Annotated[int, typer.Option("--batch", help="Queries in a step.")] = 1,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Distil a dual encoder from the exact scores that an index was built from.

    Examples:

    - `anncur distill my.anncur --from base --out base+ce`
    - `anncur distill my.anncur --loss match --epochs 10 --out scratch+ce`
    """
    with needs_extra("train"):
        from anncur.training.distillation import ScoredQueries
        from anncur.training.distillation_job import DistillationJob
        from anncur.training.distillation_job import distill as run_distillation
        from anncur.training.presets import preset as preset_of
    chosen = preset_of(preset)
    opened = Index.open(index)
    scored = ScoredQueries(opened.anchor_queries, list(opened), opened.anchor_scores().T)
    job = DistillationJob(
        start=start,
        loss=_one_of("--loss", loss, "match", "pair", "best"),
        n_top=chosen.n_top if n_top is None else n_top,
        queries_per_batch=batch,
        text=chosen.text,
        train=_given(chosen.distillation, epochs=epochs, learning_rate=learning_rate, seed=seed),
    )
    _run(lambda told: run_distillation(job, scored, out, **told), out, threads, as_json=as_json)


def _run(job: Any, out: Path, threads: int | None, *, as_json: bool) -> None:
    """Run a training, show its rows as they come, and draw them."""
    import torch

    from anncur.training.loop import ignore_row
    from anncur.training.plot import draw_log

    if threads is not None:
        torch.set_num_threads(whole_number("threads", threads, least=1))
    with show_progress(as_json=as_json) as progress:
        rows = job({"progress": progress, "on_row": ignore_row if as_json else _show})
    picture = draw_log(rows, out / "training.png")
    best = max(rows, key=lambda row: row.dev)
    if as_json:
        print_json({"path": str(out), "best": asdict(best), "rows": [asdict(row) for row in rows], "plot": picture})
    else:
        drawn = f" Its picture is {picture}." if picture else " (No picture: pip install 'anncur[plots]'.)"
        console().print(f"{out} holds the best model: {best.dev:.3f} at step {best.step}.{drawn}", markup=False)


def _show(row: Any) -> None:
    best = "  best so far" if row.is_best else ""
    loss = "     -" if row.loss is None else f"{row.loss:6.3f}"
    told = f"epoch {row.epoch + 1}  step {row.step:>6,}  loss {loss}  held-out {row.dev:.3f}{best}"
    console().print(told, markup=False)


def _given(settings: Any, **options: Any) -> Any:
    """Settings with the options that were given."""
    return replace(settings, **{name: value for name, value in options.items() if value is not None})


def _one_of(option: str, value: str, *allowed: Any) -> Any:
    if value not in allowed:
        raise typer.BadParameter(f"{option} must be one of {', '.join(allowed)}, got {value!r}")
    return value
