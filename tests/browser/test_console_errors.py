"""Which tracebacks on the console of a server are faults of ours, and which are lost streams of Gradio."""

from __future__ import annotations

from training_pro.tests.browser.console_errors import unexpected_errors

GONE = """Traceback (most recent call last):
  File "gradio/routes.py", line 1902, in sse_stream
    del blocks._queue.pending_messages_per_session[session_hash]
KeyError: 'n5fot4vqoz'
"""
OURS = """Traceback (most recent call last):
  File "interface/run/run_view.py", line 12, in draw
    return figures["loss"]
KeyError: 'loss'
"""
TOLD = """Traceback (most recent call last):
  File "interface/base/handlers.py", line 40, in call
    raise gr.Error(sentence)
gradio.exceptions.Error: 'Enter a name.'
"""


def test_only_faults_of_ours_are_found():
    assert list(unexpected_errors(f"all is well\n{GONE}{TOLD}")) == []
    assert list(unexpected_errors(f"{GONE}step 1\n{OURS}{TOLD}{OURS}")) == ["KeyError: 'loss'"] * 2
    assert list(unexpected_errors(GONE.replace("KeyError: 'n5fot4vqoz'", "TypeError: no JSON"))) == [
        "TypeError: no JSON"
    ]
