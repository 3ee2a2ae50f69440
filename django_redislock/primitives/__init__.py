"""One algorithm per file: coroutines that await nothing but their port (`port`)."""
