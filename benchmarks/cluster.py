"""Distributed training on a simulated cluster: quality, speed, faults and the cost of the exchange.

    python benchmarks/cluster.py TASK … [--results FILE.json] [--report FILE.md] [-- OPTIONS OF ncelm train …]

Tasks:
    quality STORE    test perplexity and bytes sent with 1, 2, 4 and 8 workers
    speed STORE      words/s of several hosts, each with its share of a core, at several link rates
    processes STORE  two processes compared with two threads
    faults STORE     faults at random moments
    exchange         the exchange of row deltas with up to 32 workers, without training; fits the cost model and
                     predicts clusters of up to 64 machines
    report           write the report of the results of all tasks

Hosts are network namespaces: speed, faults and exchange need root, `ip` and `tc`. Everything is removed at the end,
also after Ctrl-C and SIGTERM. With --results, the results of several tasks are kept in one file, from which --report
is written, and an interrupted series of faults is continued.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import cluster_exchange
import cluster_faults
from cluster_faults import FAULTS
from cluster_hosts import CFS_PERIOD, Cluster, exit_on_sigterm, unavailable
from cluster_jobs import Job, Progress, run_result, train_here
from common import append_history, argument_parser, command_line, describe_environment, log, markdown_table
from ncelm.io.files import atomic_write
from ncelm.io.machine import available_cores, environment_info
from ncelm.text.store import TokenStore

LIMIT = 1800.0  # seconds of a training
TITLES = {
    "quality": "Quality",
    "speed": "Words/s of several hosts",
    "processes": "Two processes compared with two threads",
    "faults": "Faults",
    "exchange": "The exchange and its cost model",
}


class Results:
    """The results of all tasks, in a JSON file if one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.entries: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    def keep(self, task: str, result: dict[str, Any]) -> dict[str, Any]:
        """Replace the result of a task, and write the file; return the entry with command and environment."""
        entry = {"command": command_line(), **environment_info("numpy", "torch"), "result": result}
        self.entries[task] = entry
        if self.path:
            with atomic_write(self.path) as file:
                file.write((json.dumps(self.entries, indent=1, ensure_ascii=False) + "\n").encode())
        return entry

    def of(self, task: str) -> dict[str, Any]:
        """Return the result of a task so far, or {}."""
        found: dict[str, Any] = self.entries.get(task, {}).get("result", {})
        return found


# -- quality -----------------------------------------------------------------------------------------------------------


def task_quality(options: argparse.Namespace, results: Results, folder: Path) -> dict[str, Any]:
    """Train with several numbers of workers; the results of other labels are kept."""
    progress, found = Progress(len(options.workers)), {}
    for workers in options.workers:
        progress.start(f"{options.label}, {workers} workers")
        out = folder / str(workers)
        found[str(workers)] = train_here(workers, [*options.train, "--threads", "1"], out, LIMIT)
        log(f"test perplexity {found[str(workers)]['test_perplexity']:.2f}")
    return results.of("quality") | {
        options.label: {"command": command_line(), "options": options.train[1:], "workers": found}
    }


def report_quality(result: dict[str, Any]) -> list[str]:
    """Return a table of all texts."""
    lines = [
        "Test perplexity of workers with one thread each on one machine, relative to one process, and the bytes that "
        "rank 0 sends per word of the text, with the broadcast of the initial parameters. All have the same seed.",
        "",
    ]
    for label, entry in result.items():
        one, rows = entry["workers"].get("1", {}).get("test_perplexity"), []
        for workers, found in entry["workers"].items():
            perplexity, sent = found["test_perplexity"], found["bytes_per_word"]
            difference = f"{100 * (perplexity / one - 1):+.2f} %" if one and workers != "1" else ""
            rows.append([workers, f"{perplexity:.2f}", difference, f"{sent:.0f}" if sent else ""])
        of_two, of_eight = (entry["workers"].get(each, {}).get("bytes_per_word") for each in ("2", "8"))
        lines += [f"**{label}** (`{' '.join(entry['options'])}`)", "", f"    {entry['command']}", ""]
        lines += [*markdown_table(["workers", "test perplexity", "relative to one", "bytes sent per word"], rows), ""]
        if of_two and of_eight:
            lines += [f"Eight workers send {of_eight / of_two:.2f} times the bytes of two.", ""]
    return lines


# -- speed -------------------------------------------------------------------------------------------------------------


def task_speed(options: argparse.Namespace, results: Results, folder: Path) -> dict[str, Any]:
    """Train on one host and on several, in alternating rounds; the results of other labels are kept."""
    store, hosts, share = TokenStore.open(options.store), options.hosts, options.cpu
    plans = [(1, 0.0), *((hosts, rate) for rate in options.rates)]
    progress = Progress(options.rounds * len(plans))
    rows: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for size, rate in plans:
            name = "one host" if size == 1 else f"{rate:g} Mbit/s" if rate else "no limit"
            progress.start(f"round {number + 1}: {name}")
            out = folder / f"{number}-{name.replace('/', ' per ')}"
            shaped = f"{round(1000 * share * rate)}kbit" if rate else None
            with Cluster(size, shaped, share) as cluster:
                words = [*options.train, "--threads", "1", "--out", str(out)]
                if size == 1:
                    command = [sys.executable, "-m", "ncelm", "train", *words]
                    if cluster.launch(0, command, folder / "log").wait(LIMIT):
                        raise SystemExit(f"training failed: {(folder / 'log').read_text().strip().splitlines()[-1]}")
                else:
                    job = Job(
                        cluster, folder / f"job-{number}-{rate:g}", lambda host, words=words: words, nodes=str(size)
                    )
                    job.start_all()
                    job.wait(LIMIT)
            rows.setdefault(name, []).append(run_result(out) | {"rate": rate, "hosts": size})
            dim = json.loads((out / "config.json").read_text())["config"]["model"]["dim"]
            shutil.rmtree(out)
    ones = [each["words_per_second"] for each in rows["one host"]]
    found = {}
    for name, trained in rows.items():
        ratios = [each["words_per_second"] / one for each, one in zip(trained, ones, strict=True)]
        speed = statistics.median(each["words_per_second"] for each in trained)
        found[name] = trained[-1] | {"words_per_second": speed, "ratio": statistics.median(ratios)}
    settings = {"hosts": hosts, "share": share, "options": options.train[1:], "dim": dim, "rounds": options.rounds}
    settings |= {"vocabulary": len(store.vocabulary), "tokens": store.split("train").tokens}
    return results.of("speed") | {options.label: {"command": command_line(), "settings": settings, "rows": found}}


def report_speed(result: dict[str, Any], exchange: dict[str, Any]) -> list[str]:
    """Return a table of link rates for each label, with the prediction of the fitted cost model if there is one."""
    settings = next(iter(result.values()))["settings"]
    hosts, share = settings["hosts"], settings["share"]
    lines = [
        f"An emulation of {hosts} hosts with one core each on fewer cores, by time dilation: CFS quotas give each host "
        f"{share:g} of a core, also the single one, and its link in both directions {share:g} of the rate of the table "
        f"(tbf). The ratio is then that of {hosts} single-core hosts with the rate of the table. Words/s are divided "
        f"by {share:g}. Quotas act in periods of {CFS_PERIOD / 1000:g} ms, which are not the same on all "
        "hosts: hosts that wait for each other lose a part of a period in each exchange. Latency is not emulated, and "
        "the hosts share caches and memory. Training without validation. The model is that of the exchange, below.",
        "",
    ]
    for label, entry in result.items():
        lines += _report_speed_of(label, entry, exchange)
    return lines


def _report_speed_of(label: str, result: dict[str, Any], exchange: dict[str, Any]) -> list[str]:
    settings, rows = result["settings"], []
    hosts, share = settings["hosts"], settings["share"]
    one = result["rows"]["one host"]["words_per_second"] / share  # of a whole core
    for name, row in result["rows"].items():
        predicted = ""
        if exchange and row["rate"]:
            latency = statistics.median(each["latency"] for each in exchange["rows"])
            bandwidth = row["rate"] * 1e6 / 8
            arguments = (one, settings["vocabulary"], settings["dim"], bandwidth, latency, exchange["constants"])
            model = cluster_exchange.cost_model(*arguments)
            predicted = f"{model.speed_up(hosts, settings['tokens']):.2f}"
        sent = f"{row['bytes_per_word']:.0f}" if row["bytes_per_word"] else ""
        speeds = [f"{row['words_per_second'] / share:,.0f}", f"{row['ratio']:.2f}"]
        rows.append([f"{row['hosts']} × {name}" if row["hosts"] > 1 else name, *speeds, predicted, sent])
    return [
        f"**{label}** (`{' '.join(settings['options'])}`, V = {settings['vocabulary']:,}, "
        f"{settings['tokens']:,} words; medians of {settings['rounds']} rounds)",
        "",
        f"    {result['command']}",
        "",
        *markdown_table(["hosts", "words/s", "relative to one", "predicted by the model", "bytes per word"], rows),
        "",
    ]


# -- two processes -----------------------------------------------------------------------------------------------------


def task_processes(options: argparse.Namespace, results: Results, folder: Path) -> dict[str, Any]:
    """Train in one process with two threads and in two processes, in alternating rounds."""
    progress, rounds = Progress(2 * options.rounds), []
    for number in range(options.rounds):
        progress.start(f"round {number + 1}: one process, two threads")
        one = train_here(1, [*options.train, "--threads", "2"], folder / f"one-{number}", LIMIT)
        progress.start(f"round {number + 1}: two processes")
        two = train_here(2, [*options.train, "--threads", "1"], folder / f"two-{number}", LIMIT)
        rounds.append((one["words_per_second"], two["words_per_second"]))
    one["words_per_second"], two["words_per_second"] = map(statistics.median, zip(*rounds, strict=True))
    ratio = statistics.median(b / a for a, b in rounds)
    return {"options": options.train[1:], "one": one, "two": two, "rounds": rounds, "ratio": ratio}


def report_processes(result: dict[str, Any]) -> list[str]:
    """Return a table."""
    ratios = [b / a for a, b in result["rounds"]]
    rows = [
        [name, f"{found['words_per_second']:,.0f}", f"{found['test_perplexity']:.2f}", sent]
        for name, found, sent in (
            ("one process, two threads", result["one"], ""),
            ("two processes", result["two"], f"{result['two']['bytes_per_word']:.0f}"),
        )
    ]
    return [
        f"On one machine, alternating, medians of {len(ratios)} rounds, `{' '.join(result['options'])}`. Two processes "
        f"have **{result['ratio']:.2f}** of the words/s of two threads (from {min(ratios):.2f} to {max(ratios):.2f}).",
        "",
        *markdown_table(["", "words/s", "test perplexity", "bytes sent per word"], rows),
        "",
    ]


# -- faults ------------------------------------------------------------------------------------------------------------


def fault_reference(options: argparse.Namespace, rate: str, folder: Path) -> dict[str, Any]:
    """Return what trials are compared with: one process, and all hosts without a fault."""
    arguments = [*options.train, "--threads", "1", f"--checkpoint-minutes={options.checkpoint_minutes:g}"]
    perplexity = {}
    for length in sorted({FAULTS[name].length for name in options.fault}):
        epochs = f"{options.epochs * length:g}"
        log(f"one process, {epochs} epochs")
        out = folder / f"one-{epochs}"
        perplexity[epochs] = train_here(1, [*arguments, f"--epochs={epochs}"], out, LIMIT)["test_perplexity"]
    undisturbed = {}
    if any(FAULTS[name].inject for name in options.fault):
        log(f"{options.hosts} hosts without a fault")
        undisturbed = cluster_faults.train_undisturbed(options.hosts, rate, folder / "all", arguments, options.epochs)
        log(f"{undisturbed['start']:.1f} s of start, {undisturbed['duration']:.1f} s of training")
    return {
        "arguments": arguments,
        "options": options.train[1:],
        "epochs": options.epochs,
        "hosts": options.hosts,
        "rate": rate,
        "perplexity": perplexity,
        "undisturbed": undisturbed,
    }


def task_faults(options: argparse.Namespace, results: Results, folder: Path) -> dict[str, Any]:
    """Run the trials that the results do not have yet, and keep each."""
    result, rate = results.of("faults"), f"{options.rates[0]:g}mbit"
    former = result.get("reference", {})
    same = {"options": options.train[1:], "epochs": options.epochs, "hosts": options.hosts, "rate": rate}
    if former and any(former[name] != value for name, value in same.items()):
        raise SystemExit(f"{options.results} has trials with other options: choose another file for --results")
    reference = fault_reference(options, rate, folder)
    # of the first call, if a series is continued: one page has one reference
    reference["perplexity"] |= former.get("perplexity", {})
    result = {"reference": reference, "trials": result.get("trials", [])}
    done = {(trial["fault"], trial["number"]) for trial in result["trials"]}
    # all faults once, then all a second time, …: an interrupted series has trials of all of them
    plan = [
        (name, number)
        for number in range(options.times)
        for name in options.fault
        if (name, number) not in done and (number < 3 or name not in cluster_faults.FEW)
    ]
    progress = Progress(len(plan))
    for name, number in plan:
        progress.start(f"{name}, trial {number}")
        for attempt in range(4):
            place = folder / f"{name}-{number}-{attempt}"
            place.mkdir()
            trial = cluster_faults.run_safely(name, number + 1000 * attempt, options.hosts, rate, place, reference)
            if trial["problem"] and options.keep:
                shutil.copytree(place, options.keep / place.name, dirs_exist_ok=True)
            shutil.rmtree(place)
            if not trial.get("late"):
                break
            reference["undisturbed"]["duration"] /= 2  # the machine was busier when it was measured
        else:
            log("not counted: training had always ended before the fault")
            continue
        result["trials"].append(trial | {"number": number})
        results.keep("faults", result)
        if trial["outcome"] == "stopped":
            log(f"stopped after {trial['seconds']:.1f} s: {(trial['lines'] or ['no line'])[0]}")
        log(
            f"{trial['outcome']}: {trial['problem'] or 'good'}"
            + (f", {trial['ratio']:.4f}" if "ratio" in trial else "")
        )
    return result


# -- command line ------------------------------------------------------------------------------------------------------


def page(results: Results) -> str:
    """Return the report in Markdown."""
    lines = ["# A simulated cluster", ""]
    lines += [
        "Hosts are network namespaces on one machine, connected by links whose rate is limited. Latency is not "
        "emulated. [Training on several machines](../scale.md) describes the method.",
        "",
    ]
    for task, title in TITLES.items():
        if task not in results.entries:
            continue
        entry = results.entries[task]
        command = [] if task in ("quality", "speed") else [f"    {entry['command']}", ""]  # these have several
        lines += [f"## {title}", "", *command, describe_environment(entry), ""]
        match task:
            case "quality":
                lines += report_quality(entry["result"])
            case "speed":
                lines += report_speed(entry["result"], results.of("exchange"))
            case "processes":
                lines += report_processes(entry["result"])
            case "faults":
                lines += cluster_faults.report(entry["result"])
            case "exchange":
                lines += cluster_exchange.report(entry["result"])
    return "\n".join(lines)


def figures(task: str, result: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of the history."""
    match task:
        case "quality":
            return {
                f"{label}, {workers} workers, test perplexity": found["test_perplexity"]
                for label, entry in result.items()
                for workers, found in entry["workers"].items()
            }
        case "speed":
            return {
                f"{label}, {name}, words/s relative to one host": row["ratio"]
                for label, entry in result.items()
                for name, row in entry["rows"].items()
            }
        case "processes":
            return {"two processes / two threads, words/s": result["ratio"]}
        case "faults":
            good = sum(trial["problem"] is None for trial in result["trials"])
            return {"trials with a fault": len(result["trials"]), "of which good": good}
        case _:
            return cluster_exchange.figures(result)


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options; those of `ncelm train` after -- in `train`, after the store."""
    common = argument_parser(__doc__)
    common.add_argument("--results", type=Path, metavar="FILE", help="JSON file that keeps the results of all tasks")
    common.add_argument("--report", type=Path, metavar="FILE", help="write a page in Markdown")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    added = {}
    for name in (*TITLES, "report"):
        added[name] = tasks.add_parser(name, parents=[common], add_help=False)
        if name not in ("exchange", "report"):
            added[name].add_argument("store", type=Path, metavar="STORE", help="token store")
    quality, speed, processes, faults, exchange = (added[name] for name in TITLES)
    for each in (quality, speed):
        each.add_argument("--label", required=True, help="name of text and options in the report")
    quality.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    for each in (speed, faults):
        each.add_argument("--hosts", type=int, default=4, help="number of hosts (4)")
    speed.add_argument("--cpu", type=float, default=0.5, help="share of a core of each host (0.5)")
    speed.add_argument(
        "--rates", type=float, nargs="+", default=[1000.0, 100.0, 0.0], help="Mbit/s (1000 100 0; 0 for no limit)"
    )
    for each, rounds in ((speed, 3), (processes, 5)):
        each.add_argument("--rounds", type=int, default=rounds, help="alternating rounds (%(default)s)")
    faults.add_argument("--times", type=int, default=10, help="trials of each fault (10)")
    faults.add_argument("--fault", action="append", choices=list(FAULTS), help="this fault only; may be repeated")
    faults.add_argument("--epochs", type=float, default=2.0, help="epochs of each training (2)")
    faults.add_argument("--rates", type=float, nargs=1, default=[1000.0], help="Mbit/s of the links (1000)")
    faults.add_argument("--checkpoint-minutes", type=float, default=0.02, help="between checkpoints (0.02)")
    faults.add_argument("--keep", type=Path, metavar="DIR", help="keep runs and logs of trials that are not good")
    exchange.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8, 16, 32], metavar="N")
    exchange.add_argument("--rates", type=float, nargs=1, default=[1000.0], help="Mbit/s of the links (1000)")
    exchange.add_argument("--vocabulary", type=int, default=100_000)
    exchange.add_argument("--dim", type=int, default=100)
    exchange.add_argument("--tokens", type=int, default=10**9, help="words of the text, for the interval (10⁹)")
    exchange.add_argument("--exchanges", type=int, default=5, help="exchanges that are measured (5)")
    exchange.add_argument(
        "--words-per-second", type=float, default=500_000, help="of a machine, in predictions (500000)"
    )
    # split here: argparse loses arguments after -- if an option precedes it
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    options.train = [str(options.store), *(words[end + 1 :] or ["--recipe", "ptb-fast"])] if "store" in options else []
    if options.task == "faults":
        options.fault = options.fault or list(FAULTS)
    return options


def run_task(options: argparse.Namespace, results: Results, folder: Path) -> dict[str, Any]:
    """Run a task; return its result."""
    if options.train:
        TokenStore.open(options.store)
    if options.task in ("speed", "faults", "exchange") and (reason := unavailable(share=options.task == "speed")):
        raise SystemExit(f"a cluster cannot be simulated here: {reason}")
    if options.task == "speed" and not 0.25 <= options.cpu <= 1.0:
        raise SystemExit("--cpu is a fraction from 0.25 to 1: the kernel has no shorter quotas")
    if options.task == "speed" and options.cpu * options.hosts > available_cores():
        raise SystemExit(
            f"{options.hosts} hosts with {options.cpu:g} cores each need more than {available_cores()} cores"
        )
    match options.task:
        case "quality":
            return task_quality(options, results, folder)
        case "speed":
            return task_speed(options, results, folder)
        case "processes":
            return task_processes(options, results, folder)
        case "faults":
            return task_faults(options, results, folder)
        case _:
            sizes = (options.vocabulary, options.dim, options.tokens, options.exchanges)
            rate = 1e6 * options.rates[0]
            return cluster_exchange.task(options.workers, rate, *sizes, folder, options.words_per_second)


def main() -> int:
    """Run a task, keep its results and write the report; return 1 if a trial of a fault is not good."""
    options = parse(sys.argv[1:])
    exit_on_sigterm()
    results, code = Results(options.results), 0
    if options.task != "report":
        with tempfile.TemporaryDirectory(prefix="ncelm-cluster-", dir=None) as folder:
            result = run_task(options, results, Path(folder))
        entry = results.keep(options.task, result)
        append_history(options.history, entry, figures(options.task, result))
        if options.json:
            print(json.dumps(entry))
        code = int(any(trial["problem"] for trial in result.get("trials", [])))
    if options.report:
        options.report.write_text(page(results))
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
