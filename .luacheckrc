-- Redis runs Lua 5.1, and gives scripts these globals.
std = "lua51"
read_globals = { "redis", "KEYS", "ARGV" }
max_line_length = 110
