_redislock() {
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
