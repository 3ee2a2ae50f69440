"""`manage.py redislock completion bash`: a script that completes the command in a shell."""

from __future__ import annotations

from argparse import SUPPRESS, _SubParsersAction
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ..output import Printer

_WORDS = r"""# Completion of `manage.py redislock`. Load this file in ~/.@SHELL@rc:
#     source ~/.redislock.@SHELL@
# Words after `redislock` are completed, whatever runs manage.py; others as before.
_redislock_words() {
    case $1:$2 in
        show:-*|clear:-*|config:-*|fence:-*) ;;
        show:*|clear:*|config:*|fence:*)
            # Held locks. The command line up to `redislock` is what the person runs. Names often
            # come from users: those with characters that mean something to a shell are left out,
            # since `compgen -W` would run what is in them.
            "${@:3}" redislock list --limit 200 --json 2>/dev/null |
                grep -o '"name": "[A-Za-z0-9_][A-Za-z0-9_.:/%+,-]*"' | cut -d '"' -f 4
            return ;;
    esac
    case $1 in
        "") printf '%s\n' @SUBCOMMANDS@ ;;
@OPTIONS@
    esac
}
"""

_BASH = r"""_redislock() {
    local current=${COMP_WORDS[COMP_CWORD]} at=0 number
    for ((number = 1; number < COMP_CWORD; number++)); do
        [[ ${COMP_WORDS[number]} == redislock ]] && at=$number && break
    done
    if ((at == 0)); then
        if [[ $(type -t _django_completion) == function ]]; then
            _django_completion
        else
            COMPREPLY=($(compgen -W redislock -- "$current") $(compgen -f -- "$current"))
        fi
        return
    fi
    # Bash splits words at colons, which names of locks have.
    local before= word=$current
    for ((number = COMP_CWORD - 1; number > at; number--)); do
        [[ $word == :* || ${COMP_WORDS[number]} == : ]] || break
        word=${COMP_WORDS[number]}$word
    done
    [[ $word == *:* ]] && before=${word%"${word##*:}"}
    local subcommand=""
    ((COMP_CWORD > at + 1)) && subcommand=${COMP_WORDS[at + 1]}
    local IFS=$' \t\n'
    local words="$(_redislock_words "$subcommand" "$word" "${COMP_WORDS[@]:0:at}")"
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
complete -o default -F _redislock manage.py ./manage.py python python3 django-admin
"""

_ZSH = r"""_redislock() {
    local at=${words[(i)redislock]} subcommand=
    if ((at >= CURRENT)); then
        compadd redislock
        if [[ $service == python* ]] && (($+functions[_python])); then _python; else _files; fi
        return
    fi
    ((CURRENT > at + 1)) && subcommand=$words[at+1]
    local found="$(_redislock_words "$subcommand" "$words[CURRENT]" "${(@)words[1,at-1]}")"
    compadd -- ${(f)found} || _files
}
(($+functions[compdef])) || { autoload -Uz compinit && compinit; }
compdef _redislock manage.py ./manage.py python python3 django-admin
"""


class Completion:
    help = "Print a script that completes this command in bash or zsh."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("shell", choices=["bash", "zsh"], help="The shell.")

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        known = _options(printer.command)
        lines = [
            f"        {name}) printf '%s\\n' {' '.join(its)} ;;" for name, its in known.items()
        ]
        script = _WORDS.replace("@SHELL@", options["shell"])
        script = script.replace("@SUBCOMMANDS@", " ".join(known))
        script = script.replace("@OPTIONS@", "\n".join(lines))
        printer.raw(script + {"bash": _BASH, "zsh": _ZSH}[options["shell"]])
        return 0


def _options(command: BaseCommand) -> dict[str, list[str]]:
    """The options of each subcommand."""
    parser = command.create_parser("manage.py", "redislock")
    (subparsers,) = (one for one in parser._actions if isinstance(one, _SubParsersAction))
    return {
        name: [
            text
            for one in its._actions
            if one.help != SUPPRESS
            for text in one.option_strings
            if text.startswith("--")
        ]
        for name, its in subparsers.choices.items()
    }
