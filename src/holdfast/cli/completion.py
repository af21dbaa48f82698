"""``holdfast completion``: completion scripts for shells, made from the declarations of the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .help import summary
from .options import Argument, Command, Group, Misuse, Option
from .output import print_text
from .parser import load

__all__ = ["COMMAND", "completion"]

EPILOG = """
Examples:
  eval "$(holdfast completion bash)"         in ~/.bashrc
  eval "$(holdfast completion zsh)"          in ~/.zshrc, after compinit
  holdfast completion fish | source          in ~/.config/fish/config.fish

The script completes commands, options and, after NAME, the command to run and
its arguments. It does not contact an engine.
"""

HELP = Option(("-h", "--help"), "Show this.")


def completion(shell: str) -> None:
    """Print a script that teaches a shell (bash, zsh or fish) to complete holdfast."""
    writers: dict[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in writers:
        raise Misuse(f"no completion for {shell!r}: there is one for bash, zsh and fish")
    print_text(writers[shell]())


def _entries() -> Iterator[tuple[str, Command | Group]]:
    """Every command and group by its full name. The root is first and has an empty name."""
    from .app import ROOT

    waiting: list[tuple[str, Command | Group]] = [("", ROOT)]
    while waiting:
        name, found = waiting.pop(0)
        yield name, found
        if isinstance(found, Group):
            waiting += [(f"{name} {word}".strip(), load(place)) for word, place in found.commands.items()]


def _words(found: Command | Group) -> list[str]:
    if isinstance(found, Group):
        return [*found.commands, "--help"]
    choices = ["bash", "zsh", "fish"] if found.handler is completion else []
    return [*choices, *(name for option in (*found.options, HELP) for name in option.names)]


def _valued(found: Command | Group) -> list[str]:
    """The options that take a value."""
    options = found.options if isinstance(found, Command) else []
    return [name for option in options if option.metavar for name in option.names]


BASH = """\
# holdfast: completion for bash
_holdfast() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  local path= plain=0 skip= index word
  COMPREPLY=()
  for ((index = 1; index < COMP_CWORD; index++)); do
    word=${{COMP_WORDS[index]}}
    if [[ -n $skip ]]; then skip=; continue; fi
    case "$path" in
      ''|redlock) [[ $word == -* ]] || path="${{path:+$path }}$word" ;;
      *)
        if [[ $word == -- ]]; then plain=2; continue; fi
        if [[ $word == -* ]]; then
          case "$path $word" in
            {valued}) skip=1 ;;
          esac
          continue
        fi
        plain=$((plain + 1))
        if [[ $path == run && $plain -ge 2 ]]; then _holdfast_command "$index"; return; fi ;;
    esac
  done
  [[ -n $skip ]] && return
  if [[ $path == run && $plain -ge 1 && $cur != -* ]] || [[ $path == run && $plain -ge 2 ]]; then
    _holdfast_command "$COMP_CWORD"; return
  fi
  case "$path" in
{cases}
  esac
}}
_holdfast_command() {{
  if declare -F _command_offset >/dev/null; then _command_offset "$1"
  elif (( COMP_CWORD == $1 )); then COMPREPLY=($(compgen -c -- "$cur"))
  else COMPREPLY=($(compgen -f -- "$cur")); fi
}}
complete -F _holdfast holdfast
"""


def _bash() -> str:
    valued = [f"'{name} {option}'" for name, found in _entries() for option in _valued(found)]
    cases = [
        f"    '{name}') COMPREPLY=($(compgen -W '{' '.join(_words(found))}' -- \"$cur\")) ;;"
        for name, found in _entries()
    ]
    return BASH.format(valued="|".join(valued), cases="\n".join(cases))


def _zsh() -> str:
    """For zsh, one `_arguments` call for each command. It also handles the end of options and inner
    commands."""
    lines = ["#compdef holdfast", "# holdfast: completion for zsh", "_holdfast() {", "  local state line"]
    lines += _zsh_group("", 2)
    lines += ["}", "compdef _holdfast holdfast", ""]
    return "\n".join(lines)


def _zsh_group(path: str, indent: int) -> list[str]:
    entries = dict(_entries())
    group = entries[path]
    if isinstance(group, Command):
        return []
    pad = " " * indent
    choices = " ".join(
        _quoted(f"{word}:{summary(entries[f'{path} {word}'.strip()])}") for word in group.commands
    )
    lines = [
        f"{pad}if (( CURRENT == 2 )); then",
        f"{pad}  local -a commands=({choices})",
        f"{pad}  _describe command commands",
        f"{pad}  return",
        f"{pad}fi",
        f"{pad}shift words; (( CURRENT-- ))",
        f"{pad}case $words[1] in",
    ]
    for word in group.commands:
        found = entries[f"{path} {word}".strip()]
        lines.append(f"{pad}  {word})")
        if isinstance(found, Group):
            lines += _zsh_group(f"{path} {word}".strip(), indent + 4)
        else:
            specs = [
                *(spec for each in (*found.options, HELP) for spec in _zsh_option(each)),
                *_zsh_arguments(found),
            ]
            lines.append(f"{pad}    _arguments -s -S {' '.join(map(_quoted, specs))}")
        lines.append(f"{pad}    ;;")
    return [*lines, f"{pad}esac"]


def _zsh_option(option: Option) -> list[str]:
    text = _first_sentence(option).replace("[", "(").replace("]", ")").replace(":", "\\:")
    value = f":{option.metavar}: " if option.metavar else ""
    instead = "*" if option.many else f"({' '.join(option.names)})"
    return [f"{instead}{name}[{text}]{value}" for name in option.names]


def _zsh_arguments(command: Command) -> list[str]:
    found = []
    for argument in command.arguments:
        if argument.raw:
            found.append("*::command:_normal")
        elif command.handler is completion:
            found.append("1:shell:(bash zsh fish)")
        else:
            found.append(f"{'*' if argument.many else ''}:{argument.name}: ")
    return found


def _fish() -> str:
    lines = ["# holdfast: completion for fish", "complete -c holdfast -f"]
    groups = [name for name, found in _entries() if isinstance(found, Group) and name]
    for name, found in _entries():
        words = name.split()
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in words)
        if isinstance(found, Group):
            listed = " ".join(found.commands)
            none = f"not __fish_seen_subcommand_from {listed}"
            condition = f"{seen} ; and {none}" if seen else "__fish_use_subcommand"
            for word, place in found.commands.items():
                text = _quoted(summary(load(place)))
                lines.append(f"complete -c holdfast -n {_quoted(condition)} -a {word} -d {text}")
            continue
        if len(words) == 1:
            # "redlock init" shares a word with "init".
            for group in groups:
                seen += f" ; and not __fish_seen_subcommand_from {group}"
        for option in (*found.options, HELP):
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = " -x" if option.metavar else ""
            text = _quoted(_first_sentence(option))
            lines.append(f"complete -c holdfast -n {_quoted(seen)} {names}{value} -d {text}")
        if found.handler is completion:
            lines.append(f"complete -c holdfast -n {_quoted(seen)} -a 'bash zsh fish'")
        if any(argument.raw for argument in found.arguments):
            lines.append(
                f"complete -c holdfast -n {_quoted(seen)} -a '(__fish_complete_subcommand --fcs-skip=3)'"
            )
    return "\n".join(lines) + "\n"


def _first_sentence(option: Option) -> str:
    """Shells show one short line for each option."""
    return option.help.partition(";")[0].partition(". ")[0].rstrip(".")


def _quoted(text: str) -> str:
    """Single quotes, in which all three shells take every character literally."""
    return "'" + text.replace("'", "'\\''") + "'"


COMMAND = Command(completion, (Argument("shell", "bash, zsh or fish."),), EPILOG)
