"""The settings of the tests, and the app."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.servers.leading.apps.Leading"]
ROOT_URLCONF = "tests.servers.leading.site"
ALLOWED_HOSTS = ["*"]
