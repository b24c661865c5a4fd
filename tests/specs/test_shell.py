"""Values in commands: what bash would run is refused, what it would not is accepted.

Each attack is tried on the real shell first, so that every entry of the table is one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ml.core.errors import Refused
from ml.specs.expressions import references, resolve_command, resolve_variables
from tests.specs.broken import LIMITS, PIPELINE, SWEEP
from tests.specs.conftest import Check

X = "${{inputs.x}}"
TOUCH = "touch hit"

# What it is → the command, and the value that runs `touch hit` in it.
ATTACKS: dict[str, tuple[str, str]] = {
    "a value without quotes": (f"echo {X}", f"a; {TOUCH}"),
    "a value in double quotes": (f'echo "{X}"', f"$({TOUCH})"),
    "a command substitution inside double quotes": (f'echo "$(echo {X})"', f"a; {TOUCH}"),
    "backticks inside double quotes": (f'echo "`echo {X}`"', f"a; {TOUCH}"),
    "single quotes inside backticks": (f"echo `echo '{X}'`", f"'`; {TOUCH}; echo `'"),
    "single quotes inside double quotes": (f"echo \"'{X}'\"", f"$({TOUCH})"),
    "a substitution in a substitution": (f'echo "$(echo "$(echo {X})")"', f"a; {TOUCH}"),
    "a process substitution": (f"cat <(echo {X})", f"a; {TOUCH}"),
    "a subshell": (f"(echo {X})", f"a; {TOUCH}"),
    "the code of a shell": (f"bash -c 'echo {X}'", f"a; {TOUCH}"),
    "the code of a shell with other options": (f"bash -e -o pipefail -c 'echo {X}'", f"; {TOUCH}"),
    "the code of a shell by its path": (f"/bin/sh -ec 'echo {X}'", f"a; {TOUCH}"),
    "the code of a shell with quotes in its name": (f"b'as'h -c 'echo {X}'", f"a; {TOUCH}"),
    "the code of a shell behind a pattern": (f"/bin/[b]ash -c 'echo {X}'", f"a; {TOUCH}"),
    "the code of a shell in a variable": (f"S=bash; $S -c 'echo {X}'", f"a; {TOUCH}"),
    "the code of a shell that another starts": (f"env A=1 nohup sh -c 'echo {X}'", f"a; {TOUCH}"),
    "the code of a shell with a limit": (f"timeout -s KILL 9 sh -c 'echo {X}'", f"a; {TOUCH}"),
    "an argument that the code evaluates": (f"bash -c 'eval \"$1\"' b '{X}'", TOUCH),
    "code in code": (f"bash -c \"sh -c 'echo {X}'\"", f"a; {TOUCH}"),
    "eval": (f"eval 'echo {X}'", f"a; {TOUCH}"),
    "eval of a variable": (f"A='{X}'; eval \"$A\"", TOUCH),
    "eval in a function": (f"f() {{ eval \"$1\"; }}; f '{X}'", TOUCH),
    "eval in a loop": (f"echo '{X}' | while read -r l; do eval \"$l\"; done", TOUCH),
    "eval of a parameter": (f"set -- '{X}'; eval \"$1\"", TOUCH),
    "a variable as a command": (f"A='{X}'; $A", TOUCH),
    "the name of a command": (X, TOUCH),
    "an assignment before a command": (f"A={X} true", f"1 {TOUCH}"),
    "a command after two others": (f"nohup env {X}", TOUCH),
    "an assignment of env that is split": (f"env A=$(echo {X}) true", f"1 {TOUCH}"),
    "words of find that are split": (f"find . -maxdepth 0 $(echo {X})", f"-exec {TOUCH} {{}} +"),
    "an assignment of env": (f"env A={X} true", f"1 {TOUCH}"),
    "the target of a redirection": (f"2> {X} true", f"log {TOUCH}"),
    "a text that is read": (f"A=1 <<< {X}", f"a {TOUCH}"),
    "a trap": (f"trap 'echo {X}' EXIT", f"a; {TOUCH}"),
    "a shell at the end of a pipe": (f"echo '{X}' | sh", TOUCH),
    "a shell that reads a text": (f"sh <<< '{X}'", TOUCH),
    "a shell that reads a file": (f"echo '{X}' > a.txt; sh < a.txt", TOUCH),
    "a script that the command writes": (f"echo '{X}' > a.sh; bash ./a.sh", TOUCH),
    "a script that is sourced": (f"echo '{X}' > a.sh; . ./a.sh", TOUCH),
    "a script that tee writes": (f"echo '{X}' | tee a.sh; sh a.sh", TOUCH),
    "a substitution that is a script": (f"bash <(echo '{X}')", TOUCH),
    "a here-document that a shell reads": (f"sh <<END\n{X}\nEND", TOUCH),
    "a here-document": (f"cat <<END\n'{X}'\nEND", f"$({TOUCH})"),
    "the end of a quoted here-document": (f"cat <<'END'\n{X}\nEND", f"a\nEND\n{TOUCH}"),
    "a comment": (f"# {X}\ntrue", f"a\n{TOUCH}"),
    "the program of awk": (f"awk 'BEGIN {{ print {X} }}'", f'system("{TOUCH}")'),
    "the program of awk in double quotes": (f'awk "BEGIN {{ {X} }}"', r"system(\"touch hit\")"),
    "lines that awk runs": (f"echo '{X}' | awk '{{ system($0) }}'", TOUCH),
    "the program of sed": (f"echo a | sed 's/a/{X}/'", f"b/;1e{TOUCH} #"),
    "lines that sed runs": (f"echo '{X}' | sed 's/a/a/;1e'", TOUCH),
    "the code of find -exec": (f"find . -maxdepth 0 -exec sh -c 'echo {X}' \\;", f"a; {TOUCH}"),
    "the words of find": (f"find . -maxdepth 0 {X}", f"-exec {TOUCH} {{}} +"),
    "xargs with a shell": (f"echo '{X}' | xargs -d '\\n' sh -c", TOUCH),
    "xargs that replaces": (f"echo '{X}' | xargs -I@ sh -c '@'", TOUCH),
    "the code of Python": (f"python3 -c 'print({X})'", '__import__("os").system("touch hit")'),
    "Python at the end of a pipe": (f"echo '{X}' | python3", 'import os; os.system("touch hit")'),
    "an argument that Python runs": (
        f"python3 -c 'import os, sys; os.system(sys.argv[1])' '{X}'",
        TOUCH,
    ),
    "the code of Perl": (f"perl -e 'print {X}'", f"system('{TOUCH}')".replace("'", '"')),
    "arithmetic": (f"echo $(( {X} ))", f"a[$({TOUCH})]"),
    "arithmetic of a variable": (f"A='{X}'; echo $(( A ))", f"a[$({TOUCH})]"),
    "a number in [[": (f"[[ '{X}' -eq 0 ]]", f"a[$({TOUCH})]"),
    "a number of a variable in [[": (f"A='{X}'; [[ $A -eq 0 ]]", f"a[$({TOUCH})]"),
    "the name of a variable": (f"test -v '{X}'", f"a[$({TOUCH})]"),
    "the name that printf sets": (f"printf -v '{X}' a", f"a[$({TOUCH})]"),
    "a declaration": (f"declare -i A='{X}'", f"a[$({TOUCH})]"),
    "a parameter's default": (f"echo ${{A:-{X}}}", f"$({TOUCH})"),
    "quotes with backslashes": (f"echo $'{X}'", f"\\\\'; {TOUCH} #"),
    "env -S": (f"env -S '{X}'", TOUCH),
    "BASH_ENV before a shell": (f"BASH_ENV='{X}' bash -c true", f"$({TOUCH})"),
    "BASH_ENV exported": (f"export BASH_ENV='{X}'; bash -c true", f"$({TOUCH})"),
    "an escaped quote": (f"echo \\'{X}\\'", f"; {TOUCH};"),
    "an apostrophe in a comment": (f"# it's\necho {X} # it's", f"a; {TOUCH}"),
    "empty quotes": (f"echo ''{X}''", f"; {TOUCH}"),
    "an optional text with half of the quotes": (
        f"echo $[['${{{{inputs.none}}}}]] a' '{X}' #'",
        f"; {TOUCH}; echo",
    ),
}  # fmt: skip


def replaced(command: str, value: str) -> str:
    """The command as Azure ML makes it: the text, whatever it holds; `none` has no value."""
    return re.sub(r"\$\[\[.*?\]\]", "", command).replace(X, value)


def runs(command: str, folder: Path) -> bool:
    """Whether the command touches `hit` in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin"},
    )
    return any("hit" in path.name for path in folder.iterdir())


def is_refused(command: str, value: str) -> bool:
    """Whether the resolver refuses that value."""
    try:
        resolve_command(command, {"x": value, "none": None}, {})
    except Refused as refused:
        assert {problem.code for problem in refused.problems} == {"shell-metacharacter"}
        return True
    return False


@pytest.mark.attack("a value that bash runs as a command")
@pytest.mark.parametrize(("command", "value"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_refused(command: str, value: str, tmp_path: Path) -> None:
    """What runs in bash when it is pasted is refused, and a plain value there is not."""
    assert runs(replaced(command, value), tmp_path / "work"), "this is no attack"
    assert is_refused(command, value)
    assert not is_refused(command, "0.5")
    assert not is_refused(command, "data/file-1.csv")


# Commands as people write them, with values that hold metacharacters.
HARMLESS: dict[str, tuple[str, str]] = {
    "single quotes": (f"python train.py --title '{X}'", "a; b & $(c) | `d`"),
    "words": (f"python train.py --layers {X}", "64 32 16"),
    "a pattern in double quotes": (f'python train.py --pattern "{X}"', r"(.*)\.jpg"),
    "single quotes in a substitution": (f'echo "$(echo \'{X}\')"', "a; b"),
    "an argument of a shell's code": (f"bash -c 'echo \"$1\"' bash '{X}'", "a; b"),
    "an argument of a script": (f"bash run.sh '{X}'", "a; b"),
    "an argument of Python's code": (
        f"python -c 'import sys; print(sys.argv[1])' '{X}'",
        "a; b",
    ),
    "a variable of awk": (f"awk -v x='{X}' 'BEGIN {{ print x }}'", "a; b"),
    "a name for find": (f"find . -name '{X}' -exec cp {{}} out/ \\;", "*(1).csv"),
    "an argument of find": (f"find . -exec sh -c 'ls \"$1\" \"$2\"' s {{}} '{X}' \\;", "a;b"),
    "a file that is written": (f"echo '{X}' > out/config.json && python train.py", '{"a": [1]}'),
    "a file of a here-string": (f"python train.py <<< '{X}'", "a; b"),
    "beside a here-document": (f"cat <<END\ntext\nEND\npython train.py '{X}'", "a; b"),
    "beside an activated environment": (f"source activate e && python train.py '{X}'", "a; b"),
    "a launcher": (f"mpirun -np 4 python train.py --x '{X}'", "a; b"),
    "a launcher with words": (f"torchrun --nproc_per_node=2 train.py --x {X}", "1 2"),
    "a test": (f"if [ -f '{X}' ]; then python train.py; fi", "a b (1).csv"),
    "a case": (f"case '{X}' in a|b) echo a ;; *) python train.py '{X}' ;; esac", "a; b"),
    "a loop": (f"for seed in 1 2; do python train.py --seed $seed '{X}'; done", "a; b"),
    "a group": (f"{{ python train.py '{X}'; }} 2>&1 | tee log.txt", "a; b"),
    "a variable": (f"TITLE='{X}' python train.py", "a; b"),
    "an optional text": (f"python train.py $[[--title '{X}']]", "a; b"),
    "lines that go on": (f"python train.py \\\n  --title '{X}' \\\n  --n 1", "a; b"),
    "a shell as a value": (f"python train.py --shell bash --title '{X}'", "a; b"),
    "xargs": (f"ls | xargs -n 1 python train.py '{X}'", "a; b"),
    "several": (f"set -e; mkdir -p out && cp '{X}' out; ls -la out | head -3", "a; b"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "value"), HARMLESS.values(), ids=HARMLESS)
def test_a_harmless_value_is_accepted(command: str, value: str) -> None:
    """A value in single quotes, or without what bash interprets, is pasted as it is."""
    assert resolve_command(command, {"x": value}, {}) == (
        command.replace("$[[", "").replace("]]", "").replace(X, value)
    )


PAYLOADS = [
    *("$(touch hit)", "; touch hit", "`touch hit`", "| touch hit", "&& touch hit", "touch hit"),
    *("\ntouch hit", "'; touch hit; '", '"; touch hit; "', "a[$(touch hit)]", "-exec touch hit +"),
    *("\\'; touch hit #", "} ; touch hit", "END\ntouch hit", 'system("touch hit")', "#", "!", "\\"),
]


@pytest.mark.attack("any of eighteen hostile values in any of the commands")
@pytest.mark.parametrize("table", [ATTACKS, HARMLESS], ids=["attacks", "harmless"])
def test_nothing_that_is_accepted_runs(table: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    """Of every hostile value in every command, none that is accepted runs in bash."""
    for name, (command, _) in table.items():
        for value in PAYLOADS:
            if not is_refused(command, value):
                assert not runs(replaced(command, value), tmp_path / "work"), (name, value)


def test_a_command_that_cannot_be_read_evaluates_everything() -> None:
    """An open quote, a bracket in a word: only a plain value is accepted there."""
    for command in (f"echo 'a {X}", f"echo a( '{X}'", f"echo $(a '{X}'", f"case a '{X}'"):
        assert is_refused(command, "a b") and not is_refused(command, "ab")


def test_the_error_says_how_to_write_it() -> None:
    """The value, what evaluates it, and the safe way with the placeholder."""
    with pytest.raises(Refused) as refused:
        resolve_command(f"awk '{{ print {X} }}' data.txt", {"x": "$1; b"}, {})
    (problem,) = refused.value.problems
    assert "'$1; b'" in problem.found and "the program of `awk`" in problem.found
    assert problem.hint == f"pass it as a variable: `awk -v x='{X}' '… x …'`"
    assert problem.expected.startswith("a plain word or path")


VARIABLES = {
    "BASH_ENV": "$(touch hit)",
    "ENV": "a; touch hit",
    "PROMPT_COMMAND": "touch hit",
    "PYTHONSTARTUP": "a b.py",
    "PYTHONWARNINGS": "ignore all",
    "LD_PRELOAD": "a.so b.so",
    "NODE_OPTIONS": "--require ./a.js",
    "GIT_SSH_COMMAND": "touch hit",
    "PS4": "$(touch hit)",
}


@pytest.mark.attack("a value in an environment variable that is evaluated")
@pytest.mark.parametrize(("name", "value"), VARIABLES.items(), ids=VARIABLES)
def test_a_variable_that_is_evaluated_takes_plain_values(name: str, value: str) -> None:
    """`BASH_ENV` and its like take a word or a path; another variable takes any text."""

    def resolved(variable: str, text: str) -> dict[str, str]:
        return resolve_variables({variable: X}, "bash run.sh", {"x": text}, {})

    with pytest.raises(Refused, match=f"the variable `{name}`"):
        resolved(name, value)
    assert resolved(name, "folder/file.sh") == {name: "folder/file.sh"}
    assert resolved("TITLE", value) == {"TITLE": value}


@pytest.mark.attack("a variable that the command evaluates")
def test_a_variable_of_a_command_that_runs_text() -> None:
    """What `eval "$TITLE"` runs is the variable's value."""
    with pytest.raises(Refused, match="runs text which it makes"):
        resolve_variables({"TITLE": X}, 'eval "$TITLE"', {"x": "a; b"}, {})
    assert resolve_variables({"TITLE": X}, 'echo "$TITLE"', {"x": "a; b"}, {})


E = "environment: azureml:e:1\n"
# Specs: the problem is in the line that ends in `# here`.
SPECS = {
    "an environment variable": E
    + "command: bash run.sh\nenvironment_variables: {BASH_ENV: '${{inputs.x}}'}\n"
    + "inputs:\n  x: $(id)  # here\n",
    "a text in an environment variable": E
    + "command: bash run.sh\nenvironment_variables:\n  BASH_ENV: $(id)  # here\n",
    "a default of a component": PIPELINE
    + "  train:\n    inputs: {}\n    component:\n      type: command\n"
    + "      environment: azureml:e:1\n"
    + "      command: train ${{inputs.x}}\n      inputs:\n        x:\n          type: string\n"
    + "          default: a; id  # here\n",
    "a choice in a choice": SWEEP.replace("search_space.rate", "search_space.deep")
    + LIMITS
    + "search_space:\n  kind:\n    type: choice\n    values:\n      - name: a\n"
    + "        deep: a; id  # here\n",
    "data that is passed as an address": E
    + "command: cat ${{inputs.x}}\ninputs:\n  x:\n    type: uri_file\n    mode: direct\n"
    + "    path: https://example.org/$(id)  # here\n",
    "a file whose name is a command": E
    + "command: cat ${{inputs.x}}\ninputs:\n  x:\n    type: uri_file\n"
    + "    path: data/$(id).csv  # here\n",
    "a choice of a step's trial": PIPELINE
    + "  tune:\n    type: sweep\n    trial: component.yml\n"
    + "    inputs: {data: '${{parent.inputs.faq}}', rate: 1}\n"
    + "    objective: {goal: maximize, primary_metric: gain}\n    limits: {max_total_trials: 2}\n"
    + "    search_space:\n      note:\n        type: choice\n        values:\n"
    + "          - a; id  # here\n",
}


@pytest.mark.attack("a spec whose value becomes a command on Azure ML")
@pytest.mark.parametrize("name", SPECS)
def test_the_check_finds_it_in_a_spec(name: str, problems: Check) -> None:
    """`ml check` refuses it with the line of the value; a plain value there passes."""
    text = SPECS[name]
    line = next(n for n, each in enumerate(text.splitlines(), 1) if each.endswith("# here"))
    found = [problem for problem in problems(text) if problem.code == "shell-metacharacter"]
    assert [problem.place and problem.place.line for problem in found] == [line]
    plain = text.replace("$(id)", "id").replace("a; id", "id")
    assert not any(problem.code == "shell-metacharacter" for problem in problems(plain))


@pytest.mark.attack("a value that a pipeline gives to a pipeline component")
def test_a_value_for_a_pipeline_component(repo: Path, problems: Check) -> None:
    """Its steps get the values of the step that runs it, from another file."""
    (repo / "inner.part").write_text(
        "type: pipeline\nname: inner\ninputs: {title: {type: string}}\njobs:\n  s:\n"
        "    environment: azureml:e:1\n    command: train ${{inputs.y}}\n"
        "    inputs: {y: '${{parent.inputs.title}}'}\n"
    )
    text = "type: pipeline\njobs:\n  outer:\n    type: pipeline\n    component: inner.part\n"
    found = problems(text + "    inputs:\n      title: a; id\n")
    assert [(problem.code, str(problem.place)) for problem in found] == [
        ("shell-metacharacter", "spec.yml:7")
    ]
    assert not problems(text + "    inputs:\n      title: two words\n")


def test_every_placeholder_has_one_context() -> None:
    """Each placeholder of a command is told with its own quotes."""
    command = "a ${{inputs.a}} '${{inputs.b}}' \"${{inputs.c}}\" $(awk '${{inputs.d}}')"
    quoting = [reference.context.quoting for reference in references(command)]
    assert quoting == ["none", "single", "double", "evaluated"]
