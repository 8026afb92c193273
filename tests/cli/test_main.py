"""The command line as a whole: help, exit codes, lazy imports, interrupts, odd output streams."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.helpers import parse_command, without_compilation

from ncelm import __version__
from ncelm.cli.main import NAMES, main
from ncelm.errors import NcelmError, Terminated

ROOT = Path(__file__).parents[2]
PARSERS = [*NAMES, "ngram train", "ngram to-arpa", "ngram from-arpa"]


def run_process(arguments, environment=None, errors_are_read=True, **options):
    """Run the command line in a process of its own; return its exit code, output and errors."""
    command = [sys.executable, "-m", "ncelm", *map(str, arguments)]
    environment = os.environ | {"PYTHONUNBUFFERED": ""} | (environment or {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(command, env=environment, **streams | options)
    if not errors_are_read:
        return done.returncode
    return done.returncode, done.stdout, without_compilation(done.stderr.decode())


# -- help ------------------------------------------------------------------------------------------------------------


def test_version(output):
    assert output(["--version"]) == output(["-V"]) == f"ncelm {__version__}\n"


def test_help_lists_all_commands_on_one_screen(output):
    text = output(["--help"])
    assert text == output(["-h"]) == output([])
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) < 80
    *others, last = (line.split() for line in lines if line.startswith("  "))
    assert [*(words[0] for words in others), *last] == NAMES


def test_every_module_of_the_package_is_a_command():
    shared = {"__init__", "main", "parser", "ui"}
    assert {path.stem for path in (ROOT / "src/ncelm/cli").glob("*.py")} - shared == set(NAMES)


@pytest.mark.parametrize("command", PARSERS)
def test_help_of_a_command(output, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    text = output([*command.split(), "--help"])
    assert text.startswith(f"usage: ncelm {command} ")
    assert max(map(len, text.splitlines())) <= 80
    if command != "ngram":
        assert "--json" in text or command == "serve"  # which has no result
        assert "  -h, --help" in text
    assert output([*command.split(), "-h"]) == text


@pytest.mark.parametrize("command", PARSERS)
def test_usage_lines_and_examples_parse(output, command):
    """Placeholders are in capitals, optional parts in brackets, and nothing else is not to be typed."""
    text = output([*command.split(), "--help"])
    usage = re.search(r"usage: (.*?)\n\n", text, re.DOTALL)
    assert usage
    examples = re.findall(r"^  (?:echo .* \| )?(ncelm .*)$", text.partition("\nexample")[2], re.MULTILINE)
    for line in [*usage[1].split("\n"), *examples]:
        line = re.sub(r" \[[^]]*\]", "", line.strip()).replace("...", "").replace("TABLE", "table1")
        parse_command(line)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["trian"], ["there is no command trian, did you mean train?", "see `ncelm --help`"]),
        (["xyz"], ["there is no command xyz: see `ncelm --help`"]),
        (["--verbose"], ["there is no option --verbose"]),
        (["train"], ["required: STORE, --out: see `ncelm train --help`"]),
        (["train", "store", "--dims", "3"], ["there is no option --dims, did you mean --dim?", "`ncelm train --help`"]),
        (["train", "store", "-dim", "3"], ["there is no option -dim, did you mean --dim?"]),
        (["train", "store", "--out", "x", "--di=3"], ["there is no option --di, did you mean --dim?"]),
        (["train", "store", "other", "--out", "x"], ["unrecognized arguments: other"]),
        (["train", "store", "--out", "x", "--dim"], ["argument --dim: expected one argument"]),
        (["train", "store", "--out", "x", "--lr", "fast"], ["--learning-rate/--lr: 'fast' is not a number"]),
        (["ngram"], ["required: COMMAND: see `ncelm ngram --help`"]),
        (["ngram", "trian"], ["trian", "train", "`ncelm ngram --help`"]),
        (["ngram", "train", "store", "--ordr", "5"], ["--ordr, did you mean --order?", "`ncelm ngram train --help`"]),
        (["ngram", "train", "store", "--order", "five"], ["argument --order: 'five' is not a whole number"]),
        (["lsa", "foo"], ["foo", "`ncelm lsa --help`"]),
        (["export", "run", "file", "--to", "foo"], ["argument --to: invalid choice: 'foo'", "glove"]),
        (["reproduce", "table4", "--data", "x", "--out", "x"], ["table4"]),
    ],
    ids=str,
)  # fmt: skip
def test_command_lines_that_cannot_be_parsed(fails, arguments, fragments):
    fails(arguments, *fragments)


def test_errors_of_the_library_name_flags(fails, monkeypatch):
    def run(arguments):
        raise NcelmError("`noise_samples` is 0, `architecture` is x, `valid_sentences` too:\nsee `ncelm train` or `y`")

    monkeypatch.setattr("ncelm.cli.train.run", run)
    line = fails(["train", "store", "--out", "x"])
    assert line == "ncelm: --noise-samples is 0, --model is x, --valid-sentences too: see `ncelm train` or `y`\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError("no 5 GB"), "not enough memory (no 5 GB): use fewer dimensions or a smaller vocabulary"),
        (OSError(errno.EACCES, "Permission denied", "/x"), "Permission denied: /x"),
    ],
    ids=["memory", "system"],
)
def test_other_errors_are_one_line(fails, monkeypatch, error, line):
    def run(arguments):
        raise error

    monkeypatch.setattr("ncelm.cli.pmi.run", run)
    assert fails(["pmi", "train", "store", "--out", "x"]) == f"ncelm: {line}\n"


# -- lazy imports ----------------------------------------------------------------------------------------------------

HEAVY = ("numba", "scipy", "nltk", "tqdm", "matplotlib", "torch", "multiprocessing")


def imported(code):
    """The heavy libraries, and NumPy, that a program imports."""
    program = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()) & {*HEAVY, "numpy"}


def test_importing_ncelm_is_light():
    assert imported("import ncelm, ncelm.errors; dir(ncelm)") == set()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["evaluate", "--help"], ["xyz"]], ids=" ".join)
def test_help_and_version_import_nothing_heavy(arguments):
    assert imported(f"from ncelm.cli.main import main; main({arguments})") == set()


def test_the_version_needs_not_even_the_option_parser():
    code = "import sys; from ncelm.cli.main import main; main(['--version']); sys.exit('argparse' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_neighbors_imports_neither_numba_nor_scipy(folder):
    arguments = ["neighbors", str(folder / "run"), "cat"]
    assert imported(f"from ncelm.cli.main import main; assert main({arguments}) == 0") <= {"numpy"}


def test_help_of_train_imports_neither_numba_nor_scipy():
    assert imported("from ncelm.cli.main import main; main(['train', '--help'])") <= {"numpy"}


# -- interrupts and output streams -----------------------------------------------------------------------------------


def test_ctrl_c_exits_with_130(capsys, monkeypatch):
    def run(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("ncelm.cli.pmi.run", run)
    assert main(["pmi", "train", "store", "--out", "x"]) == 130
    assert capsys.readouterr().err == "ncelm: stopped by Ctrl-C\n"


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_signal_in_a_callback_is_not_lost(capsys, monkeypatch, stop, code):
    """Python cannot raise in a callback of compiled code or in a destructor: it calls sys.unraisablehook."""

    class Callback:
        def __del__(self):
            raise stop

    def run(arguments):
        Callback()
        for _ in range(1000):
            time.sleep(0.01)

    monkeypatch.setattr("ncelm.cli.pmi.run", run)
    assert main(["pmi", "train", "store", "--out", "x"]) == code
    assert capsys.readouterr().err == f"ncelm: stopped by {'Ctrl-C' if code == 130 else 'SIGTERM'}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_during_training_leave_a_checkpoint(folder, tmp_path, number):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "ncelm", "train", str(folder / "store"), "--out", str(out), "--epochs", "100000"]
    command += ["--patience", "0", "--learning-rate", "0.01"]  # neither early stopping nor divergence
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out / "model.safetensors").exists():
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(number)
    errors = without_compilation(process.communicate(timeout=30)[1])
    assert process.returncode == 128 + number
    assert errors.startswith("ncelm: ")
    assert errors.count("\n") == 1
    assert "--resume" in errors
    assert (out / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_while_kernels_are_compiled(folder, tmp_path, number):
    """The answer does not wait for the compiler, which takes seconds for a kernel."""
    command = [sys.executable, "-m", "ncelm", "score", str(folder / "run")]
    environment = os.environ | {"NCELM_CACHE_DIR": str(tmp_path)}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, env=environment, text=True, **streams)
    process.stdin.write("the cat\n")
    process.stdin.flush()
    assert "compiling" in process.stderr.readline()
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert errors == f"ncelm: stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}\n"


@pytest.mark.parametrize("arguments", [["score"], ["train", "--out", "new"]], ids=lambda words: words[0])
def test_too_little_address_space(folder, tmp_path, arguments):
    """OpenBLAS would wait forever, and LLVM would abort."""
    resource = pytest.importorskip("resource")
    name, *options = arguments
    what = folder / ("store" if name == "train" else "run")
    code, out, errors = run_process(
        [name, what, *options],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)),
    )
    assert (code, out) == (2, b"")
    assert errors.startswith("ncelm: the address space is limited to 400 MB, and ncelm needs at least 1,024 MB: raise")
    assert errors.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["train", "score"])
def test_the_memory_of_openblas_is_limited_before_numpy_is_imported(folder, tmp_path, command):
    """In an address space of 1.2 GB, OpenBLAS with a buffer for each of many threads leaves no room for libraries."""
    resource = pytest.importorskip("resource")
    limit = 1200 << 20
    code, _, errors = run_process(
        [command, folder / ("store" if command == "train" else "run"), "--help"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert (code, errors) == (0, "")


def test_a_library_that_cannot_be_loaded_is_one_line(monkeypatch, capsys):
    def add_arguments(parser):
        raise ImportError("lib.so: failed to map segment from shared object")

    monkeypatch.setattr("ncelm.cli.pmi.add_arguments", add_arguments)
    monkeypatch.setattr("ncelm.io.machine.address_space_limit", lambda: 1 << 30)
    assert main(["pmi"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr("ncelm.io.machine.address_space_limit", lambda: None)
    with pytest.raises(ImportError):  # a defect of the installation
        main(["pmi"])


def test_an_error_behind_a_full_disk_exits_with_2():
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        assert run_process(["trian"], stderr=full, errors_are_read=False) == 2


def test_a_killed_export_leaves_nothing_behind_after_the_next_one(folder, tmp_path):
    script = (
        "import os, signal\n"
        "from ncelm.io import files\n"
        "files.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from ncelm.cli.main import main\n"
        f"main(['export', {str(folder / 'run')!r}, {str(tmp_path / 'vectors')!r}])"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert [name.endswith(".ncelm-partial") for name in os.listdir(tmp_path)] == [True]
    assert main(["export", str(folder / "run"), str(tmp_path / "other")]) == 0
    assert os.listdir(tmp_path) == ["other"]


def test_a_closed_pipe_is_no_error(folder, tmp_path):
    (tmp_path / "lines").write_text("the cat sat\n" * 20_000)
    command = f"{sys.executable} -m ncelm score {folder / 'run'} {tmp_path / 'lines'} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0
    assert without_compilation(done.stderr) == ""


def test_an_encoding_without_the_letters_that_are_printed(folder, tmp_path):
    (tmp_path / "lines").write_text("le caf\u00e9 \U0001f600\n")
    score = ["score", folder / "run", tmp_path / "lines", "--per-word"]
    assert run_process(score, {"PYTHONIOENCODING": "ascii"})[0] == 0


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["score", "--help"]], ids=" ".join)
def test_a_full_disk_behind_standard_output(arguments):
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        code, _, err = run_process(arguments, stdout=full)
    assert (code, err) == (2, "ncelm: No space left on device\n")


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [("--help", 0), ("trian", 2)])
def test_closed_streams(redirection, arguments, code):
    command = f"{sys.executable} -m ncelm {arguments} {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == (code != 0 and "2>" not in redirection)


def test_a_warning_is_one_line():
    code = (
        "import warnings; from ncelm.cli import pmi; from ncelm.cli.main import main\n"
        "pmi.run = lambda arguments: warnings.warn('one\\n two')\n"
        "main(['pmi', 'train', 'store', '--out', 'x']); warnings.warn('three')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[0] == "ncelm: one two"
    assert "UserWarning: three" in done.stderr


def test_all_public_names_exist():
    import ncelm

    assert all(getattr(ncelm, name) is not None for name in ncelm.__all__)
    assert set(ncelm.__all__) <= set(dir(ncelm))
