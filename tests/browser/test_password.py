"""A page with a password: nothing is shown without it, everything with it, also during a run."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from training_pro.tests.browser import servers

pytestmark = pytest.mark.browser

PASSWORD = "Grüße, Käpt'n"


@pytest.mark.long
def test_it_opens_with_the_password(browser, tmp_path, open_page):
    with servers.demo(tmp_path, "--password", PASSWORD) as server:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(server.url + "config", timeout=20)
        page = open_page(server, whole=False)
        page.wait_for(lambda: "the password that was set with --password" in page.everything(), "the question")
        page.log_in("me", "a guess")
        page.pause(1)
        assert not page.has("start")
        page.log_in("me", PASSWORD)
        page.wait_for(lambda: page.has("start"), "the page")
        page.press("load")
        page.wait_for_words("model", "is loaded")
        page.start("inside", epochs=4)
        page.reload()
        page.wait_until_ended("inside")
