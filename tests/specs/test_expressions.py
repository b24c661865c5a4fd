"""The resolver: what is substituted, what is quoted, what is refused."""

from __future__ import annotations

import shlex
import subprocess
import time
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.core.errors import UserError
from ml.specs.expressions import (
    METACHARACTERS,
    literal,
    references,
    resolve_command,
    resolve_variables,
    without_placeholders,
)


def resolved(template: str, value: object = "v") -> str:
    return resolve_command(template, {"x": value}, {}, {})  # type: ignore[dict-item]


def code(template: str, value: object = "v") -> str:
    with pytest.raises(UserError) as refused:
        resolved(template, value)
    return refused.value.problems[0].code


def test_every_source_is_substituted() -> None:
    """Inputs, outputs and hyperparameters go in, with any blanks inside the braces."""
    command = resolve_command(
        "python a.py --a ${{inputs.a}} ${{ outputs.o }}/m ${{search_space.r}}",
        {"a": "1"},
        {"o": PurePath("/out")},
        {"r": "0.5"},
    )
    assert command == "python a.py --a 1 /out/m 0.5"


def test_literals_are_verbatim_and_paths_are_quoted() -> None:
    """A literal's blanks separate words, as on Azure ML; a path is one word."""
    assert resolved("python a.py ${{inputs.x}}", "a b") == "python a.py a b"
    assert resolved("python a.py ${{inputs.x}}/f", PurePath("/a b;c")) == "python a.py '/a b;c'/f"
    assert resolved("python -m a --b ${{inputs.x}}", PurePath("/a (1)")) == (
        "python -m a --b '/a (1)'"
    )
    assert resolved('python a.py "${{inputs.x}}/f"', PurePath("/a b;c")) == (
        'python a.py "/a b;c/f"'
    )
    assert code('python a.py "${{inputs.x}}"', PurePath("/a$(id)")) == "shell-metacharacter"
    assert code("bash -c 'echo ${{inputs.x}}'", PurePath("/a;id")) == "shell-metacharacter"


def test_optional_blocks() -> None:
    """`$[[…]]` stays when its inputs have values and goes away when one has none."""
    template = "python a.py $[[--a ${{inputs.a}}]] $[[--b ${{inputs.b}}]]"
    assert resolve_command(template, {"a": "1", "b": "2"}, {}) == "python a.py --a 1 --b 2"
    assert resolve_command(template, {"a": "1", "b": None}, {}) == "python a.py --a 1 "
    both = "python a.py $[[--ab ${{inputs.a}},${{inputs.b}}]]"
    assert resolve_command(both, {"a": "1", "b": None}, {}) == "python a.py "
    assert resolve_command("[[ -f x ]] && echo", {}, {}) == "[[ -f x ]] && echo"


def test_an_undeclared_name_is_refused_with_a_hint() -> None:
    """Every unbound placeholder is told at once, the nearest name as a hint."""
    with pytest.raises(UserError) as refused:
        resolve_command("python a.py ${{inputs.learnin_rate}} ${{zzz}}", {"learning_rate": "1"}, {})
    first, second = refused.value.problems
    assert first.code == second.code == "unbound-expression"
    assert first.hint == "did you mean `${{inputs.learning_rate}}`?"
    assert code("python a.py ${{inputs.x}}", None) == "no-value"


@pytest.mark.parametrize("char", METACHARACTERS)
def test_every_metacharacter_is_refused_where_it_acts(char: str) -> None:
    """Each character that the shell acts on, without quotes and in both kinds of quotes."""
    value = f"a{char}b"
    assert code("python a.py ${{inputs.x}}", value) == "shell-metacharacter"
    for quote, acts in (('"', '$`"\0'), ("'", "'\0")):
        template = f"python a.py {quote}${{{{inputs.x}}}}{quote}"
        if char in acts:
            assert code(template, value) == "shell-metacharacter"
        else:
            assert resolved(template, value) == f"python a.py {quote}{value}{quote}"


def test_a_pattern_in_double_quotes_is_fine_until_it_ends_in_a_backslash() -> None:
    """`(.*)\\.jpg` is one word in double quotes; a last backslash would open them."""
    assert resolved('python a.py "${{inputs.x}}"', r"(.*)\.jpg") == r'python a.py "(.*)\.jpg"'
    assert code('python a.py "${{inputs.x}}"', "jpg\\") == "shell-metacharacter"


@pytest.mark.parametrize(
    "template",
    [
        "bash -c '${{inputs.x}}'",
        "sh -ec 'echo ${{inputs.x}}'",
        "python -c 'print(${{inputs.x}})'",
        "eval '${{inputs.x}}'",
        "ssh host '${{inputs.x}}'",
        "echo $'${{inputs.x}}'",
        "cat <<END\n'${{inputs.x}}'\nEND",
        "echo \\'${{inputs.x}}\\'",
        "# it's '${{inputs.x}}\necho",
        "echo \\${{inputs.x}}",
        "echo ''${{inputs.x}}''",
    ],
)
def test_quotes_that_do_not_protect(template: str) -> None:
    """Single quotes whose content is code after all, or which are no quotes, protect nothing."""
    assert code(template, "1; id") == "shell-metacharacter"


def test_quotes_that_protect() -> None:
    """An apostrophe in double quotes does not turn the quotes round."""
    assert "'1; id'" in resolved("python a.py \"it's\" '${{inputs.x}}'", "1; id")


def test_placeholders_in_variables() -> None:
    """A plain word or path is substituted; what is not declared stays as it is."""
    text = "${{inputs.x}}-${{outputs.o}}-${{name}}"
    variables = resolve_variables({"X": text}, {"x": "a"}, {"o": "/o"})
    assert variables == {"X": "a-/o-${{name}}"}
    with pytest.raises(UserError, match="may evaluate it"):
        resolve_variables({"X": text}, {"x": "a;b"}, {"o": "/o"})
    assert [literal(value) for value in (True, 1, 0.5, "x")] == ["True", "1", "0.5", "x"]


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0'"), max_size=20))
def test_a_single_quoted_value_is_one_word_of_the_shell(value: str) -> None:
    """Whatever a value holds, in single quotes the shell sees one word, the value itself."""
    command = resolve_command("python a.py '${{inputs.x}}'", {"x": value}, {})
    assert shlex.split(command)[-1] == value


HOSTILE = ["$(touch hit)", "; touch hit", "`touch hit`", "| touch hit", "&& touch hit"]


@pytest.mark.parametrize(
    "value", [*HOSTILE, "\ntouch hit", "' ; touch hit ; '", '" ; touch hit ; "']
)
@pytest.mark.parametrize("quotes", ["{}", "'{}'", '"{}"'])
def test_no_value_runs_in_a_real_shell(value: str, quotes: str, repo: PurePath) -> None:
    """Of every hostile value in every kind of quotes, none that is let through runs in bash."""
    try:
        command = resolved("bash a.sh " + quotes.format("${{inputs.x}}"), value)
    except UserError:
        return
    (Path(repo) / "a.sh").write_text("true\n")
    subprocess.run(["/bin/bash", "-c", command], check=True, capture_output=True, cwd=repo)
    assert not any("hit" in path.name for path in Path(repo).iterdir())


@given(st.text(max_size=60))
def test_any_template_is_read(template: str) -> None:
    """No text crashes the reader of placeholders, and each lies where it says."""
    for reference in references(template):
        assert template[reference.start : reference.end] == reference.text


@pytest.mark.attack("A spec of some kilobytes occupies the check for minutes")
@pytest.mark.parametrize(
    "template",
    [
        *("$[[" * 30_000 + "${{inputs.x}}", "${{" * 30_000, "${{ a" + " " * 90_000 + "b}}"),
        *("$[[${{inputs.x}}]]" * 5_000, "echo " * 20_000 + "$[[${{inputs.x}}]]" * 90),
        "python a.py" + " $[[--x '${{inputs.x}}']]" * 20_000 + " (",
    ],
)
def test_reading_takes_time_in_proportion(template: str) -> None:
    """Brackets that are not closed are passed once, and long commands are not read often."""
    start = time.process_time()
    references(template)
    without_placeholders(template)
    assert time.process_time() - start < 2
