"""A real Nova on 127.0.0.1, for the test in this directory: API, scheduler, conductor and placement
of Nova's own functional tests, over hypervisors that only pretend. It has no identity service: it
takes every token, and all calls are those of an administrator of one project.

It needs the packages python3-nova, nova-common and python3-placement of Debian with what Nova's tests
import, see README.md. Environment: PORT, and API_PASTE, the path of Nova's api-paste.ini.

It prints one line once it serves: ready, the id of an image and the id of a network.
"""

import os

# Without these, the fixtures swallow the output and end the test that serves after a while.
os.environ.update(OS_LOG_CAPTURE="0", OS_TEST_TIMEOUT="0")

import eventlet

eventlet.monkey_patch(os=False)

import eventlet.wsgi
import unittest

from nova.conf import paths
from nova.tests import fixtures
from nova.tests.fixtures import conf
from nova.tests.functional import integrated_helpers

HOSTS = ("host-a", "host-b")


def find_paste():
    """Debian keeps api-paste.ini outside the source tree, where the tests look for it."""
    inside = paths.state_path_def

    def path(*parts):
        if any("api-paste" in p for p in parts):
            return os.environ["API_PASTE"]
        return inside(*parts)

    conf.paths.state_path_def = path


class Catch(fixtures.wsgi.Loader):
    """Keeps the API's application, which the tests otherwise reach only over a fake socket."""

    apps = {}

    def load_app(self, name):
        self.apps[name] = app = super().load_app(name)
        return app


class Nova(integrated_helpers._IntegratedTestBase):
    ADMIN_API = True
    api_major_version = "v2.1"
    microversion = "latest"

    def _setup_compute_service(self):
        for host in HOSTS:
            self._start_compute(host)

    def test_serve(self):
        identity = {
            "HTTP_X_AUTH_USER": "admin",
            "HTTP_X_AUTH_PROJECT_ID": self.api.project_id,
            "HTTP_X_ROLES": "reader,member,admin",
        }

        def serve(environ, start_response):
            return Catch.apps["osapi_compute"]({**environ, **identity}, start_response)

        socket = eventlet.listen(("127.0.0.1", int(os.environ["PORT"])))
        image = self.glance.detail(None)[0]["id"]
        print("ready", image, self.neutron.network_1["id"], flush=True)
        eventlet.wsgi.server(socket, serve, log_output=False)


if __name__ == "__main__":
    find_paste()
    fixtures.wsgi.Loader = Catch
    unittest.main(argv=["nova", "Nova.test_serve"])
