"""Results of `sdpg bench scaling` for people: a figure, and tables for a Markdown page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sdpg.errors import SdpgError

BEGIN, END = "<!-- sdpg bench scaling: begin -->", "<!-- sdpg bench scaling: end -->"

Row = Mapping[str, Any]


def put(results: Sequence[Row], page: Path) -> None:
    """Write the tables of `results` between the page's marks."""
    try:
        page.write_text(filled(page.read_text(), results))
    except OSError as error:
        raise SdpgError(f"can't write '{page}': {error.strerror or error}; give another --page") from error
    except ValueError as error:
        raise SdpgError(f"'{page}' {error}") from error


def filled(text: str, results: Sequence[Row]) -> str:
    """`text` with the tables of `results` between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"has no place for tables: give it the lines {BEGIN} and {END}")
    body = "\n\n".join([*(tables(result) for result in results), *([predictions(results)] if results else [])])
    return f"{before}{BEGIN}\n{body}\n{END}{after}" if body else f"{before}{BEGIN}\n{END}{after}"


def tables(result: Row) -> str:
    """A result as Markdown, every number from it."""
    ours, cpu = result["measured"], result["machine"]
    held = [row for row in ours if row["use"] == "held out"]
    parts = [
        f"### {result['task']}, {result['obs']}",
        f"`{result['command']}`, on {cpu['cpu']} with {cpu['cores']} cores. A row's seconds are the median of an "
        f"iteration, with quartiles, of {result['rounds']} turns. The model is fitted to the configurations above the "
        "line and not to those below it.",
        _configurations(ours, result["obs"] != "state"),
        f"On the {len(held)} configurations that it was not fitted to the model is off by at most "
        f"{_errors(result['held_out_error'])}; on those that it was fitted to by at most "
        f"{_errors(result['fit_error'])}. The memory that `sdpg train` announces differs from the peak of the process "
        f"(of rank 0) by at most {_errors(result['memory_error'])}.",
        _prices(result["prices"]),
    ]
    if result["ranks"]:
        parts += ["Two ranks against one with twice the threads, the median of the ratios of all turns:"]
        parts += [_ranks(result["ranks"])]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _configurations(rows: Sequence[Row], images: bool) -> str:
    head = ["N", "M", "T", *(["pixels"] if images else []), "ranks x threads", "measured (s)", "model (s)", "error"]
    head += ["memory (MB)", "planned (MB)"]

    def cells(row: Row) -> list[str]:
        low, high = row["quartiles"]
        return [
            *(str(row[name]) for name in ("num_nominal", "num_auxiliary", "horizon")),
            *([str(row["size"])] if images else []),
            f"{row['ranks']} x {row['threads']}",
            f"{row['seconds']:.3f} ({low:.3f} to {high:.3f})",
            f"{row['predicted_seconds']:.3f}",
            f"{100 * row['error']:+.1f} %",
            f"{row['peak_mb']:.0f}",
            f"{row['planned_mb']:.0f}",
        ]

    fitted = [cells(row) for row in rows if row["use"] == "fitted"]
    held = [cells(row) for row in rows if row["use"] == "held out"]
    line = [["**held out**"] + [""] * (len(head) - 1)] if held else []
    return _table(head, fitted + line + held)


def _prices(prices: Mapping[str, Mapping[str, Row]]) -> str:
    head = ["phase", "price", "", "per"]
    rows = [
        [phase, name, duration(price["value"]), price["unit"].removeprefix("seconds per ")]
        for phase, mine in prices.items()
        for name, price in mine.items()
    ]
    return _table(head, rows)


def _ranks(pairs: Sequence[Row]) -> str:
    head = ["N", "M", "T", "2 ranks (s)", "1 rank (s)", "ratio"]
    return _table(
        head,
        [
            [
                *(str(pair[name]) for name in ("num_nominal", "num_auxiliary", "horizon")),
                f"{pair['seconds']:.3f}",
                f"{pair['one_rank_seconds']:.3f}",
                f"{pair['ratio']:.3f}",
            ]
            for pair in pairs
        ],
    )


def predictions(results: Sequence[Row]) -> str:
    """What the models say of cards that were not here, and what is assumed."""
    head = ["", "N", "M", "T", "seconds", "of them physics", "a run"]
    rows = []
    for result in results:
        for name, facts in result["predictions"].items():
            if not isinstance(facts, Mapping):
                continue
            seconds, physics, hours = facts["seconds"], facts["phases"]["physics"], facts["hours"]
            rows.append(
                [
                    f"{result['task']}, {result['obs']}: {name}",
                    *(str(facts[key]) for key in ("num_nominal", "num_auxiliary", "horizon")),
                    *(f"{x:.3f}" for x in (seconds, physics)),
                    f"{hours['value']:.1f} hours of {hours['iterations']:,} iterations",
                ]
            )
    assumed = "\n".join(f"- {text}" for text in results[0]["predictions"]["assumptions"])
    preset = results[0]["predictions"]["preset"]
    intro = f"An iteration with the {preset} preset. None of it was measured:"
    return f"### On a GPU: a prediction\n\n{intro}\n\n{_table(head, rows)}\n\n{assumed}"


def duration(seconds: float) -> str:
    """Three digits and a fitting unit."""
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {name}"
    return f"{seconds / 1e-12:.3g} ps"


def _errors(error: Row) -> str:
    return f"{100 * error['worst']:.1f} % (mean {100 * error['mean']:.1f} %)"


def draw(results: Sequence[Row], path: Path) -> None:
    """A row of panels for each result: measured against predicted, seconds against M and N, and ranks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(len(results), 4, figsize=(14, 3.3 * len(results)), squeeze=False, layout="constrained")
    for axes, result in zip(grid, results, strict=True):
        rows = result["measured"]
        _against_model(axes[0], rows)
        axes[0].set_title(f"{result['task']}, {result['obs']}")
        _against(axes[1], rows, "num_auxiliary", "M, branches of a nominal")
        _against(axes[2], rows, "num_nominal", "N, nominal worlds")
        _bars(axes[3], result["ranks"])
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise SdpgError(f"can't draw '{path}': {error}; give another --figure") from error
    finally:
        plt.close(figure)


def _against_model(axes: Any, rows: Sequence[Row]) -> None:
    for use, mark in (("fitted", "o"), ("held out", "s")):
        mine = [row for row in rows if row["use"] == use]
        x, y = [row["predicted_seconds"] for row in mine], [row["seconds"] for row in mine]
        axes.loglog(x, y, mark, label=use, mfc="none" if use == "fitted" else None)
    ends = [min(row["seconds"] for row in rows) / 1.3, max(row["seconds"] for row in rows) * 1.3]
    axes.plot(ends, ends, "k-", lw=0.8)
    axes.fill_between(ends, [0.8 * e for e in ends], [1.2 * e for e in ends], color="k", alpha=0.08, label="± 20 %")
    axes.set(xlabel="model (s)", ylabel="measured (s)")
    axes.legend(fontsize=7)


def _against(axes: Any, rows: Sequence[Row], name: str, caption: str) -> None:
    """Measured points, and the model's line through configurations that differ in nothing but `name`."""
    others = ("num_nominal", "num_auxiliary", "horizon", "threads", "ranks", "size")
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        series.setdefault(tuple(row[other] for other in others if other != name), []).append(row)
    letters = dict(zip(others, ("N", "M", "T", "", "", ""), strict=True))
    for mine in sorted(series.values(), key=len, reverse=True)[:3]:
        if len(mine) < 2:
            continue
        mine.sort(key=lambda row: row[name])
        x = [row[name] for row in mine]
        (line,) = axes.plot(x, [row["predicted_seconds"] for row in mine], "-", lw=1)
        fixed = ", ".join(f"{letters[o]} {mine[0][o]}" for o in others[:3] if o != name)
        label = f"{fixed}; {mine[0]['ranks']} x {mine[0]['threads']}"
        axes.plot(x, [row["seconds"] for row in mine], "o", color=line.get_color(), label=label)
    axes.set(xlabel=caption, ylabel="seconds (line: model)", xlim=(0, None), ylim=(0, None))
    if series and axes.lines:
        axes.legend(fontsize=7)


def _bars(axes: Any, pairs: Sequence[Row]) -> None:
    names = [f"N {pair['num_nominal']}\nM {pair['num_auxiliary']}" for pair in pairs]
    for shift, key, label in (
        (-0.2, "one_rank_seconds", "1 rank, all threads"),
        (0.2, "seconds", "2 ranks, half each"),
    ):
        bars = axes.bar([i + shift for i in range(len(pairs))], [pair[key] for pair in pairs], 0.38, label=label)
        if key == "seconds":
            axes.bar_label(bars, [f"x {pair['ratio']:.2f}" for pair in pairs], fontsize=7)
    axes.set_xticks(range(len(pairs)), names)
    axes.set(ylabel="seconds")
    if pairs:
        axes.legend(fontsize=7)
