# Completion of `manage.py redislock`. Load this file in ~/.@SHELL@rc:
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
