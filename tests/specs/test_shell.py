"""Values in commands: text that bash might evaluate is refused, and data is accepted.

Each attack is tried on the real shell first, so that every entry of the table is one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path, PurePath

import pytest

from ml.core.errors import UserError
from ml.specs.expressions import references, resolve_command, resolve_variables
from tests.specs.broken import LIMITS, PIPELINE, SWEEP
from tests.specs.conftest import Check

X, Y = "${{inputs.x}}", "${{inputs.y}}"
TOUCH = "touch hit"
# An expression, and code in Python, that run it; an option of tar.
SUBSCRIPT = f"a[$({TOUCH})]"
PYTHON = f'import os; os.system("{TOUCH}")'
ACTION = f"--checkpoint-action=exec={TOUCH}"

# A command, the value of x, and that of y if it has one.
Case = tuple[str, ...]

# Each runs `touch hit` in bash.
ATTACKS: list[Case] = [
    # Quotes that do not protect, and places without quotes.
    (f"echo {X}", f"a; {TOUCH}"),
    (f'echo "{X}"', f"$({TOUCH})"),
    (f"echo \"'{X}'\"", f"$({TOUCH})"),
    (f"echo \\'{X}\\'", f"; {TOUCH};"),
    (f"echo $'{X}'", f"\\\\'; {TOUCH} #"),
    (f"echo ''{X}''", f"; {TOUCH}"),
    (f"# it's\necho {X} # it's", f"a; {TOUCH}"),
    (f"# {X}\ntrue", f"a\n{TOUCH}"),
    (f"echo $[['${{{{inputs.none}}}}]] a' '{X}' #'", f"; {TOUCH}; echo"),
    (f"A={X} true", f"1 {TOUCH}"),
    (f"2> {X} true", f"log {TOUCH}"),
    (f"A=1 <<< {X}", f"a {TOUCH}"),
    (f"echo {X}#'{Y}'", "", f"a\n{TOUCH} #"),
    (f"echo a; export A={X} || true", f"1; {TOUCH}"),
    # Substitutions, here-documents and expressions.
    (f'echo "$(echo {X})"', f"a; {TOUCH}"),
    (f'echo "`echo {X}`"', f"a; {TOUCH}"),
    (f"echo `echo '{X}'`", f"'`; {TOUCH}; echo `'"),
    (f'echo "$(echo "$(echo {X})")"', f"a; {TOUCH}"),
    (f"cat <(echo {X})", f"a; {TOUCH}"),
    (f"(echo {X})", f"a; {TOUCH}"),
    (f"cat <<END\n'{X}'\nEND", f"$({TOUCH})"),
    (f"cat <<'END'\n{X}\nEND", f"a\nEND\n{TOUCH}"),
    (f"echo $(( {X} ))", SUBSCRIPT),
    (f"A='{X}'; echo $(( A ))", SUBSCRIPT),
    (f"[[ '{X}' -eq 0 ]]", SUBSCRIPT),
    (f"A='{X}'; [[ $A -eq 0 ]]", SUBSCRIPT),
    (f"echo ${{A:-{X}}}", f"$({TOUCH})"),
    (f"echo $[ {X} ]", SUBSCRIPT),
    (f'echo "$[ {X} ]"', SUBSCRIPT),
    (f"(( {X} ))", SUBSCRIPT),
    (f"[[ a == a && echo -eq '{X}' ]]", SUBSCRIPT),
    (f"A[{X}]=1", f"$({TOUCH})"),
    (f"echo a > >(sh); echo '{X}' > >(sh); sleep 0.1", TOUCH),
    (f"A='{X}'; B=${{A@P}}", f"$({TOUCH})"),
    (f"echo ${{!{X}}}", SUBSCRIPT),
    # Code, and names of commands.
    (f"bash -c 'echo {X}'", f"a; {TOUCH}"),
    (f"bash -e -o pipefail -c 'echo {X}'", f"; {TOUCH}"),
    (f"/bin/sh -ec 'echo {X}'", f"a; {TOUCH}"),
    (f"b'as'h -c 'echo {X}'", f"a; {TOUCH}"),
    (f"/bin/[b]ash -c 'echo {X}'", f"a; {TOUCH}"),
    (f"S=bash; $S -c 'echo {X}'", f"a; {TOUCH}"),
    (f"bash -c 'eval \"$1\"' b '{X}'", TOUCH),
    (f"bash -c \"sh -c 'echo {X}'\"", f"a; {TOUCH}"),
    (f"eval 'echo {X}'", f"a; {TOUCH}"),
    (f"A='{X}'; eval \"$A\"", TOUCH),
    (f"f() {{ eval \"$1\"; }}; f '{X}'", TOUCH),
    (f"echo '{X}' | while read -r l; do eval \"$l\"; done", TOUCH),
    (f"set -- '{X}'; eval \"$1\"", TOUCH),
    (f"A='{X}'; $A", TOUCH),
    (X, TOUCH),
    (f"trap 'echo {X}' EXIT", f"a; {TOUCH}"),
    (f"python3 -c 'print({X})'", '__import__("os").system("touch hit")'),
    (f"python3 -c 'import os, sys; os.system(sys.argv[1])' '{X}'", TOUCH),
    (f"perl -e 'print {X}'", f"system('{TOUCH}')".replace("'", '"')),
    (f"awk 'BEGIN {{ print {X} }}'", f'system("{TOUCH}")'),
    (f'awk "BEGIN {{ {X} }}"', r"system(\"touch hit\")"),
    (f"echo a | sed 's/a/{X}/'", f"b/;1e{TOUCH} #"),
    (f"python3 -c '{X}'", PYTHON),
    (f"python3 -m timeit -n 1 '{X}'", PYTHON),
    (f"python3 -m timeit -n 1 --setup '{X}' 1", PYTHON),
    (f"python3 '{X}' train.py", f"-c{PYTHON}"),
    (f"python3 -\\\nc '{X}' train.py", PYTHON),
    (f"make --eval='{X}'", f"$(shell {TOUCH})"),
    (f"git -c alias.x='{X}' x", f"!{TOUCH}"),
    (f"shopt -s expand_aliases\nalias echo=eval\necho '{X}'", TOUCH),
    (f'function echo {{ eval "$@"; }}\necho "{X}"', TOUCH),
    (f"echo '{X}'; eval \"$_\"", TOUCH),
    (f"hash -p /usr/bin/env ls; ls '{X}'", f"-S{TOUCH}"),
    (f"history -s '{X}'; fc -s", TOUCH),
    (f"for a in '{X}'; do $a; done", TOUCH),
    (f"if {X}; then true; fi", TOUCH),
    (f"set -- '{X}'; $1", TOUCH),
    (f"case a in '{X}') true;; a) eval '{X}';; esac", TOUCH),
    (f"complete -C '{X}' ls; compgen -C '{X}' a", TOUCH),
    (f"mapfile -c 1 -C '{X}' < run.sh", TOUCH),
    # Programs that start others.
    (f"env A=1 nohup sh -c 'echo {X}'", f"a; {TOUCH}"),
    (f"timeout -s KILL 9 sh -c 'echo {X}'", f"a; {TOUCH}"),
    (f"nohup env {X}", TOUCH),
    (f"env A={X} true", f"1 {TOUCH}"),
    (f"env A=$(echo {X}) true", f"1 {TOUCH}"),
    (f"env -S '{X}'", TOUCH),
    (f"find . -maxdepth 0 -exec sh -c 'echo {X}' \\;", f"a; {TOUCH}"),
    (f"find . -maxdepth 0 {X}", f"-exec {TOUCH} {{}} +"),
    (f"find . -maxdepth 0 $(echo {X})", f"-exec {TOUCH} {{}} +"),
    (f"echo '{X}' | xargs -d '\\n' sh -c", TOUCH),
    (f"echo '{X}' | xargs -I@ sh -c '@'", TOUCH),
    (f"timeout 5 sh -c '{X}'", TOUCH),
    (f"nice sh -c '{X}'", TOUCH),
    (f"exec sh -c '{X}'", TOUCH),
    (f"command eval '{X}'", TOUCH),
    (f"coproc eval '{X}'; wait", TOUCH),
    (f"time eval '{X}'", TOUCH),
    (f"! {X}", TOUCH),
    (f"setsid -w sh -c '{X}'", TOUCH),
    (f"script -qc '{X}' /dev/null", TOUCH),
    (f"flock run.sh -c '{X}'", TOUCH),
    (f"tar xf a.tar --to-command='{X}'", TOUCH),
    (f"tar xf a.tar --to-command '{X}'", TOUCH),
    (f"tar cf b.tar --checkpoint=1 '{X}' run.sh", ACTION),
    (f"touch -- --checkpoint=1 '{X}'; tar cf b.tar *", ACTION.replace("hit", "hit;")),
    (f"ssh -o ProxyCommand='{X}' host", TOUCH),
    # Text that reaches a program through a pipe or a file.
    (f"echo '{X}' | sh", TOUCH),
    (f"sh <<< '{X}'", TOUCH),
    (f"echo '{X}' > a.txt; sh < a.txt", TOUCH),
    (f"echo '{X}' > a.sh; bash ./a.sh", TOUCH),
    (f"echo '{X}' > a.sh; . ./a.sh", TOUCH),
    (f"echo '{X}' | tee a.sh; sh a.sh", TOUCH),
    (f"bash <(echo '{X}')", TOUCH),
    (f"sh <<END\n{X}\nEND", TOUCH),
    (f"echo '{X}' | awk '{{ system($0) }}'", TOUCH),
    (f"echo '{X}' | sed 's/a/a/;1e'", TOUCH),
    (f"echo '{X}' | python3", PYTHON),
    (f"source <(echo '{X}')", TOUCH),
    (f"echo '{X}' > a.txt; source ./a.txt", TOUCH),
    (f"echo '{X}' > activate; source ./activate", TOUCH),
    (f"echo '{X}' | . /dev/stdin", TOUCH),
    (f"echo '{X}' | {{ bash; }}", TOUCH),
    (f"echo '{X}' |& sh", TOUCH),
    (f"echo '{X}' | dd of=a.sh; bash a.sh", TOUCH),
    (f"echo '{X}' &> a.sh; bash a.sh", TOUCH),
    (f"echo '{X}' >&2.sh; bash 2.sh", TOUCH),
    (f"echo '{X}' >| a.sh; bash a.sh", TOUCH),
    (f"echo '{X}' > a.txt; cp a.txt a.sh -v; bash a.sh", TOUCH),
    (f"echo '{X}' > a.txt; mv -S b a.txt a.sh; bash a.sh", TOUCH),
    (f"echo '{X}' > a.txt; cp a.txt '{Y}'; bash a.sh", TOUCH, "a.sh"),
    (f"echo '{X}' > {Y}; python3 a.py", PYTHON, "a.py"),
    (f"echo '{X}' | tee -a a.txt a.sh; bash a.sh", TOUCH),
    (f"A='{X}'; echo \"$A\" > a.sh; bash a.sh", TOUCH),
    (f"echo '{X}' | python3 '{Y}'", PYTHON, "/dev/stdin"),
    (f"python3 -i train.py <<< '{X}'", PYTHON),
    (f"echo '{X}' > ~/.bashrc; bash -i run.sh", TOUCH),
    (f"awk -f - <<< '{X}'", f'BEGIN {{ system("{TOUCH}") }}'),
    # Names that bash evaluates, and variables.
    (f"test -v '{X}'", SUBSCRIPT),
    (f"printf -v '{X}' a", SUBSCRIPT),
    (f"declare -i A='{X}'", SUBSCRIPT),
    (f"BASH_ENV='{X}' bash -c true", f"$({TOUCH})"),
    (f"export BASH_ENV='{X}'; bash -c true", f"$({TOUCH})"),
    (f"RANDOM='{X}'; true", SUBSCRIPT),
    (f"export OPTIND='{X}'", SUBSCRIPT),
    (f"for RANDOM in '{X}'; do true; done", SUBSCRIPT),
    (f"[ '{X}' '{Y}' ]", "-v", SUBSCRIPT),
    (f"test ! '{X}' '{Y}'", "-v", SUBSCRIPT),
    (f"[ -n a -a -v '{X}' ]", SUBSCRIPT),
    (f"A='{X}'; [ $A ]", "-v a[$(touch${IFS}hit)]"),
    (f"printf '{X}' '{Y}' a", "-v", SUBSCRIPT),
    (f"read -r '{X}' < run.sh", SUBSCRIPT),
    (f"declare '{X}'=1", SUBSCRIPT),
    (f"let '{X}'", SUBSCRIPT),
    (f"declare -n A='{X}'; echo $A", SUBSCRIPT),
    (f"A='{X}'; export B; BASH_ENV=$A bash -c true", f"$({TOUCH})"),
    (f"PS4='{X}'; set -x; true", f"$({TOUCH})"),
    (f"GIT_EXTERNAL_DIFF='{X}' git diff --no-index --ext-diff run.sh train.py", f"{TOUCH};"),
    (f"PROMPT_COMMAND='{X}' bash -i < run.sh", TOUCH),
]  # fmt: skip

# Nothing runs here, or not on this machine. Whether something could is not known: it is refused.
REFUSED: list[Case] = [
    (f"train '{X}'", "a; b"),
    (f"nohup python train.py '{X}'", "a; b"),
    (f"(python train.py '{X}')", "a; b"),
    (f"echo \"$(echo '{X}')\"", "a; b"),
    (f"bash -c 'echo \"$1\"' bash '{X}'", "a; b"),
    (f"python -c 'import sys; print(sys.argv[1])' '{X}'", "a; b"),
    (f"python -m trace '{X}'", "a b"),
    (f"python -m torch.distributed.run --no-python sh -c '{X}'", "a b"),
    (f"python -X '{X}' train.py", "a b"),
    (f"torchrun --no-python sh -c '{X}'", "a b"),
    (f"torchrun --nproc_per_node {X} train.py", "1 --no-python a"),
    (f"torchrun --nproc_per_node $N train.py '{X}'", "a b"),
    (f"mpirun sh -c '{X}'", "a b"),
    (f"mpirun -np 1 watch python train.py '{X}'", "a b"),
    (f"mpirun -np 1 python train.py : -np 1 sh -c '{X}'", "a b"),
    (f"accelerate launch --no_python sh -c '{X}'", "a b"),
    # They may start other machines with `ssh`, whose shell reads the text.
    (f"accelerate launch --use_deepspeed train.py '{X}'", "-a; b"),
    (f"deepspeed --hostfile hosts train.py '{X}'", "-a; b"),
    (f"horovodrun -np 2 python train.py '{X}'", "-a; b"),
    (f"pip install --index-url '{X}' torch", "https://example.org; a"),
    (f"pip install -e '{X}'", "git+https://example.org/a b"),
    (f"echo '{X}' > requirements.txt; pip install -r requirements.txt", "-e git+https://a/b"),
    (f"git -c core.pager='{X}' log", "a b"),
    (f"rsync -e '{X}' data host:data", "a b"),
    (f"docker run image sh -c '{X}'", "a b"),
    (f"conda run -n e sh -c '{X}'", "a b"),
    (f"jupyter nbconvert --to '{X}' a.ipynb", "a b"),
    (f"sort --compress-program='{X}' a.txt", "a b"),
    (f"watch -g '{X}'", "a b"),
    (f"make A='{X}'", "$(shell a)"),
    (f"PATH='{X}' ls", "a b"),
    (f"LD_PRELOAD='{X}' ls", "a b"),
    (f"PIP_INDEX_URL='{X}' pip install torch", "https://example.org a"),
    (f"A='{X}'; export \"$A\"", "BASH_ENV=$(a)"),
    (f"set '{X}'", "-a b"),
    (f"unset '{X}'", SUBSCRIPT),
    (f"awk -v x='{X}' 'BEGIN {{ print x }}'", "a; b"),
    (f"find . -name '{X}' -exec cp {{}} out/ \\;", "*(1).csv"),
    (f"ls | xargs -n 1 python train.py '{X}'", "a; b"),
    (f"python train.py <<< '{X}'", "a; b"),
    (f"cat <<END\ntext\nEND\npython train.py '{X}'", "a; b"),
    (f"case '{X}' in a) echo a ;; esac", "a; b"),
    (f"cat run.sh > '{X}'", "a b"),
    # A variable, a file or a pipe may hand it to another program.
    (f"TITLE='{X}' python train.py --n $N", "a; b"),
    (f"TITLE='{X}'; echo \"${{TITLE}}\"; python train.py --title \"$TITLE\"", "a; b"),
    (f"echo '{X}' > out/config.json && python train.py", '{"a": [1]}'),
    (f"printf '%s\\n' '{X}' > ${{{{outputs.o}}}}/note.txt", "a; b"),
    (f"if [ -f '{X}' ]; then python train.py; fi", "a b (1).csv"),
    (f"set -e; mkdir -p out && cp '{X}' out; ls -la out | head -3", "a; b"),
    # Other programs and constructs around the script.
    (f"bash -euo pipefail run.sh '{X}'", "a; b"),
    (f"chmod +x run.sh && ./run.sh '{X}'", "a; b"),
    (f"mpirun -np 4 python train.py --x '{X}'", "a; b"),
    (f"torchrun --nproc_per_node=2 train.py --x {X}", "1 2"),
    (f"torchrun --nproc_per_node {X} train.py '{Y}'", "2", "a; b"),
    (f"accelerate launch --multi_gpu train.py '{X}'", "a; b"),
    (f"tar xzf data.tgz -C data; python train.py '{X}'", "a; b"),
    (f"unzip -q {X} -d data && python train.py '{Y}'", "data.zip", "a; b"),
    (f"source activate e && python train.py '{X}'", "a; b"),
    (f"export PYTHONPATH=$PWD:$PYTHONPATH; python train.py '{X}'", "a; b"),
    (f"{{ python train.py '{X}'; }} 2>&1 | tee log.txt", "a; b"),
    (f"for seed in 1 2; do python train.py --seed $seed '{X}'; done", "a; b"),
    (f"# it's\necho \"it's\" '{X}' # it's", "a; b"),
    (f"echo \"a \\\"quote\\\", $HOME, 5$.\" '{X}'", "a; b"),
    (f"python train.py\\\n'{X}'", "a b"),
    (f"python train.py$[['{X}']]", "a b"),
    (f"python train.py --a$[['{X}']] $[[b]]c", "a b"),
    (f"python train.py '{X}' > a.txt; python b.py", "a; b"),
    (f"python train.py '{X}' | python b.py", "a; b"),
    (f"python train.py '{X}' # a", "a; b"),
    # It cannot be read.
    (f"echo 'a {X}", "a b"),
    (f"echo a( '{X}'", "a b"),
    (f"echo $(a '{X}'", "a b"),
    (f"case a '{X}'", "a b"),
    (f"echo '{X}' >", "a b"),
    (f"echo \ue000 '{X}'", "a b"),
    ("echo" + " $[[a]]" * 501 + f" '{X}'", "a b"),
]  # fmt: skip

# Commands as people write them.
ACCEPTED: list[Case] = [
    (f"python train.py --title '{X}'", "a; b & $(c) | `d`"),
    (f"python -u train.py --layers {X}", "64 32 16"),
    (f'python train.py --pattern "{X}"', r"(.*)\.jpg"),
    (f"python train.py \\\n  --title '{X}' \\\n  --n 1", "a; b"),
    (f"python train.py $[[--title '{X}']]", "a; b"),
    (f"python train.py --shell bash --title '{X}'", "a; b"),
    (f"python train.py -c '{X}' -e '{X}'", "a; b"),
    (f"python -m ml.projects.faq.train '{X}'", "a; b"),
    (f'cd src && python -m package --title "{X}" --n 1', "Hello, World! (1)"),
    (f"python -m package --title='{X}'", "-a b"),
    (f"python -m package.train '{X}'", "a b"),
    (f"python -m package.train --title '{X}'", "-c b"),
    (f"python -m package.train --title {X}", "a -c b"),
    (f"python -m package.train --title={X}", "a {-c,b}"),
    (f"python -m package.train --command '{X}'", "a b"),
    (f"python -m package --rate {X}", "-0.5"),
    (f"python -m package --mode {X}", "For training"),
    (f"designer execute $[[resume={X}]] lr={Y}", "", "0.1"),
    (f"python -m package --run_name '{X}' --encoder '{X}'", "a b"),
    (f"bash run.sh '{X}'", "a; b"),
    (f"pip install -r requirements.txt && python train.py '{X}'", "a; b"),
    (f"wget {X} && python train.py", "https://example.org/data/a-1.csv"),
    (f"python train.py '{X}' 2>&1 | tee out/log.txt", "a; b"),
    (f"python train.py '{X}' > /dev/null 2>&1", "a; b"),
    (f"pip install -e . && mkdir -p out; python train.py '{X}' > out/log.txt 2>&1", "a; b"),
    (f"python prepare.py '{X}'\npython train.py --seed $SEED \"it's $HOME {Y}\"\n", "a; b", "c; d"),
]  # fmt: skip


def replaced(command: str, x: str, y: str = "") -> str:
    """The command as Azure ML makes it: the text, whatever it holds; `none` has no value."""
    return re.sub(r"\$\[\[.*?\]\]", "", command).replace(X, x).replace(Y, y)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two scripts and an archive, to be copied, and programs that do nothing."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "train.py").write_text("import sys\n")
    (folder / "run.sh").write_text("true\n")
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(folder / "run.sh", "run.sh")
    (folder / "bin").mkdir()
    for name in ("pip", "wget"):
        (folder / "bin" / name).symlink_to("/bin/true")
    return folder


def runs(command: str, folder: Path) -> bool:
    """Return True if the command creates `hit` in a copy of the folder, which is also its home."""
    work = folder.with_name("work")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(folder, work, symlinks=True)
    subprocess.run(
        ["bash", "-c", command],
        cwd=work,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={"PATH": f"{work}/bin:/usr/bin:/bin", "HOME": str(work)},
    )
    return any(path.name.startswith("hit") for path in work.iterdir())


def is_refused(command: str, x: str, y: str = "0.5") -> bool:
    """Return True if the resolver refuses these values."""
    try:
        resolve_command(command, {"x": x, "y": y, "none": None}, {"o": PurePath("/out")})
    except UserError as refused:
        assert {problem.code for problem in refused.problems} == {"shell-metacharacter"}
        return True
    return False


@pytest.mark.attack("a value that bash runs as a command")
@pytest.mark.parametrize("case", ATTACKS, ids=str)
def test_an_attack_is_refused(case: Case, folder: Path) -> None:
    """What runs in bash when it is pasted is refused, and a plain value there is not."""
    command, *values = case
    assert runs(replaced(command, *values), folder), "this is no attack"
    assert is_refused(command, *values)
    assert not is_refused(command, "0.5")
    assert not is_refused(command, "data/file-1.csv")


@pytest.mark.attack("a value where a program may run it")
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_is_not_known_is_refused(case: Case) -> None:
    """A program or a construct that is not known takes a plain word alone."""
    command, *values = case
    assert is_refused(command, *values)
    assert not is_refused(command, "0.5")
    assert not is_refused(command, "data/file-1.csv")


@pytest.mark.parametrize("case", ACCEPTED, ids=str)
def test_data_is_accepted(case: Case) -> None:
    """A value in single quotes, or without what bash interprets, is pasted as it is."""
    command, x, *y = case
    values = {"x": x, "y": y[0] if y else ""}
    resolved = resolve_command(command, values, {"o": PurePath("/out")})
    written = command.replace("$[[", "").replace("]]", "").replace("${{outputs.o}}", "/out")
    assert resolved == written.replace(X, x).replace(Y, values["y"])


PAYLOADS = [
    *("$(touch hit)", "; touch hit", "`touch hit`", "| touch hit", "&& touch hit", "touch hit"),
    *("\ntouch hit", "'; touch hit; '", '"; touch hit; "', "a[$(touch hit)]", "-exec touch hit +"),
    *("\\'; touch hit #", "} ; touch hit", "END\ntouch hit", 'system("touch hit")', "#", "!", "\\"),
]


@pytest.mark.attack("any of eighteen hostile values in any of the commands")
@pytest.mark.parametrize("cases", [ATTACKS, REFUSED, ACCEPTED], ids=["attacks", "refused", "data"])
def test_nothing_that_is_accepted_runs(cases: list[Case], folder: Path) -> None:
    """Of every hostile value in every command, none that is accepted runs in bash."""
    for command, *_ in cases:
        for value in PAYLOADS:
            if not is_refused(command, value, value):
                assert not runs(replaced(command, value, value), folder), (command, value)


def test_the_error_says_how_to_write_it() -> None:
    """The value, what may evaluate it, and the safe way with the placeholder."""
    with pytest.raises(UserError) as refused:
        resolve_command(f"awk '{{ print {X} }}' data.txt", {"x": "$1; b"}, {})
    (problem,) = refused.value.problems
    assert "'$1; b'" in problem.actual and "may evaluate it" in problem.actual
    assert problem.hint.endswith(f"`bash FILE.sh '{X}'` or `python FILE.py '{X}'`")
    assert problem.expected.startswith("a plain word or path")


VARIABLES = {
    "BASH_ENV": "$(touch hit)",
    "ENV": "a; touch hit",
    "PROMPT_COMMAND": "touch hit",
    "PYTHONSTARTUP": "a b.py",
    "PYTHONWARNINGS": "ignore all",
    "PERL5OPT": "-Ma b",
    "LD_PRELOAD": "a.so b.so",
    "NODE_OPTIONS": "--require ./a.js",
    "GIT_SSH_COMMAND": "touch hit",
    "GIT_EXTERNAL_DIFF": "touch hit",
    "PIP_INDEX_URL": "https://example.org a",
    "LESSOPEN": "|touch hit",
    "JAVA_TOOL_OPTIONS": "-javaagent:a b",
    "SSH_ASKPASS": "touch hit",
    "XZ_OPT": "-a b",
    "RANDOM": SUBSCRIPT,
    "PS4": "$(touch hit)",
}


@pytest.mark.attack("a value in an environment variable that is evaluated")
@pytest.mark.parametrize(("name", "value"), VARIABLES.items(), ids=VARIABLES)
def test_a_variable_takes_plain_values(name: str, value: str) -> None:
    """A value that a shell or program may evaluate can be a word or a path, but no other text."""
    for variable in (name, "TITLE"):
        with pytest.raises(UserError, match="may evaluate it"):
            resolve_variables({variable: X}, {"x": value}, {})
        assert resolve_variables({variable: X}, {"x": "a/file.sh"}, {}) == {variable: "a/file.sh"}


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
    + "      command: python train.py ${{inputs.x}}\n      inputs:\n        x:\n"
    + "          type: string\n          default: a; id  # here\n",
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
        "    environment: azureml:e:1\n    command: python /o/train.py ${{inputs.y}}\n"
        "    inputs: {y: '${{parent.inputs.title}}'}\n"
    )
    text = "type: pipeline\njobs:\n  outer:\n    type: pipeline\n    component: inner.part\n"
    found = problems(text + "    inputs:\n      title: a; id\ncompute: azureml:c\n")
    assert [(problem.code, str(problem.place)) for problem in found] == [
        ("shell-metacharacter", "spec.yml:7")
    ]
    assert not problems(text + "    inputs:\n      title: two words\ncompute: azureml:c\n")


@pytest.mark.attack("a value that a schedule gives to a job")
@pytest.mark.parametrize(
    ("job", "kind"),
    [
        ("command: python /o/train.py ${{inputs.x}}\nenvironment: azureml:e:1\n", "command"),
        (
            "type: pipeline\njobs:\n  s:\n    environment: azureml:e:1\n"
            "    command: python /o/train.py ${{inputs.y}}\n"
            "    inputs: {y: '${{parent.inputs.x}}'}\n    compute: azureml:c\n",
            "pipeline",
        ),
    ],
)
def test_a_value_of_a_schedule(job: str, kind: str, repo: Path, problems: Check) -> None:
    """A schedule sets inputs and variables of the job's file; both are checked with its command."""
    (repo / "job.part").write_text(f"{job}inputs: {{x: a}}\n")
    text = (
        f"name: s\ntrigger: {{type: cron, expression: 15 16 * * 1}}\ncreate_job:\n  type: {kind}\n"
    )
    text += "  job: ./job.part\n"
    # azure-ai-ml schedules no command job, which is a problem of its own.
    of_kind = {("schedule-job", "spec.yml:3")} if kind == "command" else set()

    def found(more: str) -> set[tuple[str, str]]:
        return {(problem.code, str(problem.place)) for problem in problems(text + more)}

    assert found("  inputs: {x: two words}\n") == of_kind
    values = "  inputs: {x: a; id}\n"
    values += "  environment_variables: {BASH_ENV: $(id)}\n" if kind == "command" else ""
    lines = {
        ("shell-metacharacter", f"spec.yml:{line}") for line in range(6, 6 + values.count("\n"))
    }
    assert found(values) == lines | of_kind


def test_every_placeholder_has_one_context() -> None:
    """Each placeholder of a command has its own quotes."""
    command = "python a.py ${{inputs.a}} '${{inputs.b}}' \"${{inputs.c}}\" | tee ${{inputs.d}}"
    quoting = [reference.quoting for reference in references(command)]
    assert quoting == ["none", "single", "double", "evaluated"]
