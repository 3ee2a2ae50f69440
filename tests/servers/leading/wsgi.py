"""The application of WSGI servers."""

import sys

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

if "uwsgi" in sys.modules:
    from .apps import leader

    # With uwsgidecorators: postfork(leader.start)
    sys.modules["uwsgi"].post_fork_hook = leader.start  # type: ignore[attr-defined]
