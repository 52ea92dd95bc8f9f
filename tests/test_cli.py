"""The command: subcommands, flags, help, exit statuses, what it prints, and what it does not import."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import MISSING, fields

import pytest
from helpers import ROOT

from raycase import __version__, cli
from raycase.cli import main, parse, resume_command
from raycase.commands import COMMANDS
from raycase.commands.reading import grouped
from raycase.errors import RequestError, WorkError, is_verbose, note

FILES = ["--train", "a", "--validation", "b", "--output", "c"]


def status_of(*arguments, **options):
    """Exit status of the command, run in this process."""
    try:
        main(list(arguments), **options)
    except SystemExit as stop:
        return stop.code or 0
    return 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_has_a_line_and_its_own_help(name, capsys):
    assert status_of("--help") == 0
    assert f"   • {name} " in capsys.readouterr().out
    assert status_of(name, "--help") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: raycase {name} ") and f"\nExample: raycase {name}" in printed
    flags = COMMANDS[name].flags
    assert isinstance(flags, type) or all(f" {system} " in printed for system in flags)


@pytest.mark.parametrize("words", [["embed"], ["search"], ["index"], ["train", "condition-pooling"]])
def test_the_help_begins_with_what_people_use(words, capsys):
    assert status_of(*words, "--help-all") == 0
    usual, advanced = capsys.readouterr().out.split("advanced options")
    flags = re.findall(r"^. (--?[a-z]+[a-z0-9-]*)", usual, re.MULTILINE)[1:]  # the first is -h
    of = COMMANDS[words[0]].flags
    of = of[words[1]] if len(words) > 1 else of
    required = [f"--{f.name.replace('_', '-')}" for f in fields(of) if f.default is MISSING]
    assert flags[: len(required)] == required and len(flags) <= 15
    assert "(required)" not in advanced and "(default: None)" not in usual + advanced
    more = len(re.findall(r"^. --[a-z]", advanced, re.MULTILINE))
    assert len(flags) + more == sum(map(len, grouped(of)))
    assert status_of(*words, "--help") == 0
    short = capsys.readouterr().out
    assert re.findall(r"^. (--?[a-z]+[a-z0-9-]*)", short, re.MULTILINE)[1:] == flags
    assert f"`raycase {' '.join(words)} --help-all` shows {more} more flags." in short


def test_flags_from_a_file(tmp_path, capsys):
    file = tmp_path / "job.yaml"
    file.write_text("input: a.csv\nconditions: [the place, yes]\nkeep_columns: [t]\nany-condition: false\nactors: 2")
    job = parse(["embed", "--config", str(file), "--output", "out", "--actors", "3"])
    assert (job.input, job.output, job.conditions) == ("a.csv", "out", ("the place", "yes"))
    assert job.keep_columns == ("t",)
    assert parse(["embed", "--config", str(file), "--conditions", "place"]).conditions == ("place",)
    assert (job.any_condition, job.actors) == (False, "3")
    for text, said in (
        ("- a", "a YAML file"),
        ("a: {b: 1}", "{'b': '1'} for a; quote it"),
        ("conditions:\n- role: of the person\n- place", "{'role': 'of the person'} for conditions"),
        ("model:", "nothing for model"),
        ("inputs: a", "--inputs"),
        ("a: [", "while parsing"),
    ):
        file.write_text(text)
        assert status_of("embed", "--config", str(file)) == 2
        assert said in capsys.readouterr().err
    assert status_of("embed", "--config") == 2
    file.write_text("train: a\nvalidation: b\noutput: c\nepochs: 7")
    assert parse(["tune", "--seeds", "1", "--", "case", "--config", str(file)]).training.epochs == 7


def test_quiet_prints_errors_and_the_result_alone(monkeypatch, capsys):
    monkeypatch.setenv("TQDM_DISABLE", "0")
    monkeypatch.setenv("RAYCASE_QUIET", "")
    monkeypatch.delenv("RAYCASE_QUIET")

    def work(job):
        note("a line for people")
        raise RequestError("--input: wrong")

    assert status_of("embed", "--output", "out", "--quiet", work=work) == 2
    assert capsys.readouterr().err == "error: --input: wrong\n"


def test_verbose_is_for_ray(monkeypatch):
    monkeypatch.setenv("RAYCASE_VERBOSE", "")
    monkeypatch.delenv("RAYCASE_VERBOSE")
    assert status_of("embed", "--verbose", "--output", "out", work=lambda job: {"verbose": is_verbose()}) == 0
    assert is_verbose()


def test_the_version_and_a_shell_that_completes_every_flag(capsys):
    assert status_of("--version") == 0
    assert capsys.readouterr().out == f"raycase {__version__}\n"
    assert status_of("--tyro-print-completion", "bash") == 0
    script = capsys.readouterr().out
    assert "--text-column" in script and "--max-rejected" in script


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Expected one of {demo, embed, verify"),
        (["embeds"], "Available subcommands: demo, embed, verify"),
        (["embed", "--output", "out", "--bogus", "1"], "Unrecognized options: --bogus"),
        (["embed", "--limit"], "--limit"),
        (["embed", "--keep-columns", "a", "--keep_columns=b"], "--keep-columns: expected it once, with all its values"),
        (["verify"], "OUTPUT"),
        (["train", "tri"], "Available subcommands: case, condition-pooling"),
        (["tune", "case", *FILES], "tune: expected -- and the words of `raycase train`"),
        (["tune", "--", "case", *FILES, "--heads", "2"], "--heads"),
        (["train", "tri-encoder"], "--train"),
    ],
)
def test_flags_that_cannot_be_read_are_named(arguments, words, capsys):
    assert status_of(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err and not captured.out


def raising(error):
    def work(job):
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (RequestError("expected this,\n got that"), 2, "error: expected this, got that\n"),
        (WorkError("it failed"), 1, "error: it failed\n"),
        (PermissionError("no entry"), 1, "error: PermissionError: no entry; run the same command again\n"),
    ],
)
def test_an_error_is_one_line_and_a_status(error, status, line, capsys):
    assert status_of("verify", "out", work=raising(error)) == status
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("words", [["--help"], ["verify", "out"]])
def test_what_cannot_be_printed_ends_no_work(words):
    code = f"from raycase.cli import main\nmain({words}, work=lambda job: print('café') or {{'rows': 1}})"

    def done(out, encoding="utf-8"):
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        return subprocess.run([sys.executable, "-c", code], stdout=out, stderr=-1, text=True, cwd=ROOT, env=environment)

    reader, nobody = os.pipe()
    os.close(reader)
    for ended in (narrow := done(subprocess.PIPE, "ascii"), done(nobody)):
        assert (ended.returncode, ended.stderr) == (0, "")
    assert ("push" if "--help" in words else 'caf\\xe9\n{"rows": 1}\n') in narrow.stdout
    with open("/dev/full", "w") as full:
        ended = done(full)
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("error: standard output: expected room, got: [Errno 28]")


@pytest.mark.parametrize(("raised", "status"), [("None", 0), ("RequestError('no')", 2), ("KeyError('x')", 1)])
def test_a_process_ends_by_its_own_status_and_runs_what_others_registered(raised, status, tmp_path):
    code = f"""
import atexit, threading, time
import raycase.cli as c
from raycase.errors import RequestError
def work(job):
    atexit.register(print, "registered")
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # a library's, still running
    if error := {raised}:
        raise error
    return {{"rows": 1}}
import raycase.commands.verify
raycase.commands.verify.verify = work
c.console(["verify", "out"])"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == '{"rows": 1}\n' * (not status) + "registered\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_at_once_and_says_how_to_resume(number, status, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/bin/raycase", "train", "case", "--train", "a b.csv", "--overwrite"])

    def exit_at_once(status):
        raise SystemExit(status)

    monkeypatch.setattr(cli.os, "_exit", exit_at_once)
    before = signal.getsignal(number)
    again = "to run it again"
    for name, said in (("case", again), ("condition-pooling", again), ("bi-encoder", "to resume"), ("index", again)):
        arguments = ("train", name, *FILES) if name != "index" else (name, "--output", "o")
        assert status_of(*arguments, work=lambda job: signal.raise_signal(number)) == status
        assert signal.getsignal(number) is before
        command = "raycase train case --train 'a b.csv'" + " --overwrite" * (said == again)
        assert capsys.readouterr().err == f"error: stopped; {said}: {command}\n"


@pytest.mark.parametrize("flags", [(), ("--overwrite",)])
@pytest.mark.parametrize("error", [OSError("full"), WorkError("full; run the same command again to resume")])
def test_what_to_do_after_an_error_loses_nothing(flags, error, capsys):
    """A job that overwrote goes on without the flag; without it, an index would get the rows beside its former ones."""
    assert status_of("embed", "--output", "o", *flags, work=raising(error)) == 1
    without = " without --overwrite" if flags else ""
    assert capsys.readouterr().err.endswith(f"full; run the same command again{without} to resume\n")
    assert status_of("index", "--output", "o", *flags, work=raising(OSError("full"))) == 1
    assert capsys.readouterr().err.endswith("full; run the same command again\n")


def test_the_command_that_resumes_runs_where_it_ran(monkeypatch):
    monkeypatch.setattr("sys.argv", ["jobs/embed.py", "--input", "a b.csv", "--overwrite"])
    submitted = "ray job submit --working-dir . -- "
    for name, where in {"RAY_ADDRESS": "RAY_ADDRESS=auto ", "RAY_JOB_CONFIG_JSON_ENV_VAR": submitted}.items():
        monkeypatch.setenv(name, "auto")
        assert resume_command() == f"{where}python jobs/embed.py --input 'a b.csv'"


def test_a_person_at_a_terminal_is_told_where_the_rows_are_and_what_is_next(tmp_path, tiny_model, capsys, monkeypatch):
    """In three lines before the result, by their own flags; a pipe gets the result alone."""
    (tmp_path / "in.csv").write_text("id,text\na,a red dress\nb,\n")
    flags = ["embed", "--input", str(tmp_path / "in.csv"), "--model", str(tiny_model), "--max-rejected", "1"]
    out, index = str(tmp_path / "o p"), str(tmp_path / "i.lance")
    files = {"words": ["--conditions", "the\n color a=b", "place"], "plain": ["--unconditional", "--index", index]}
    said = {}
    for name, more in files.items():
        assert status_of(*flags, *more, "--output", f"{out}-{name}", "--no-ray") == 0
        assert "next: " not in capsys.readouterr().err
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: True)
            assert status_of(*flags, *more, "--output", f"{out}-{name}", "--no-ray") == 0
        shown = capsys.readouterr()
        said[name] = shown.err.splitlines()[-3:]
        assert json.loads(shown.out.splitlines()[-1])["rows_out"] == 1  # one line, as by contract
    first, there = f"'{out}-words'", "1 rows embedded, 1 rejected"
    built = f"raycase index --embeddings {first} --output '{out}-words.lance'"
    searched = f"raycase search --index '{out}-words.lance' --query \"...\" --condition 'the color a=b=1'"
    assert said["words"] == [there, f"they are in {first}", f"next: {built} && {searched}"]
    searched = f'raycase search --index {index} --query "..."'
    assert said["plain"] == [there, f"they are in '{out}-plain', and indexed in {index}", f"next: {searched}"]


def test_the_scripts_in_jobs_are_the_subcommands_of_their_names():
    scripts = {script.stem: script.read_text(encoding="utf-8") for script in (ROOT / "jobs").glob("*.py")}
    assert scripts.keys() == {"demo", "embed", "evaluate", "train", "tune"}
    for name in scripts.keys() - {"demo"}:  # which is on Ray
        assert f'console(["{name}", *sys.argv[1:]])' in scripts[name]
