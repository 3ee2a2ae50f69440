_redislock() {
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
