"""A reward function that asks a model on a server with OpenAI's chat-completions interface for a number.

    grpo-lab train --reward docs/examples/http_judge.py:HttpJudge --set judge.workers=8

Copy the file and change what it asks. The environment has the server's address and, where it wants one, its key.
"""

import json
import os
import re
import urllib.error
import urllib.request

from grpo_lab.tasks.conversations import text_of
from grpo_lab.tasks.judge_pool import CallFailed

URL = os.environ.get("JUDGE_URL", "http://localhost:8000/v1").rstrip("/") + "/chat/completions"
KEY = "".join(os.environ.get("JUDGE_API_KEY", "").split())
REQUEST = {"model": "judge-model", "temperature": 0}
PROMPT = """Question: {prompt}
Reference: {answer}
Answer: {completion}
Rate the answer from 0 (wrong) to 10 (perfect). Reply with the number alone."""
AGAIN = {408, 425, 429, 500, 502, 503, 504, 529}  # after these statuses the same request may succeed


class HttpJudge:
    """Is made with the settings of the section `judge`; the pool makes the retries."""

    def __init__(self, settings):
        self.timeout_s = settings.timeout_s

    def __call__(self, prompts, completions, answer=None, **columns):
        """The number that the model gives each completion. An exception is a failed call."""
        rows = zip(prompts, completions, answer or [""] * len(prompts), strict=True)
        asked = [PROMPT.format(prompt=text_of(p), completion=text_of(c), answer=a) for p, c, a in rows]
        return [self.score(message) for message in asked]

    def score(self, message):
        body = json.dumps({**REQUEST, "messages": [{"role": "user", "content": message}]}).encode()
        request = urllib.request.Request(URL, body, {"Content-Type": "application/json"})
        if KEY:
            request.add_unredirected_header("Authorization", f"Bearer {KEY}")  # no other server gets it
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                answer = reply.read()
        except urllib.error.HTTPError as error:
            error.close()
            wait = error.headers.get("Retry-After", "")
            again, after = error.code in AGAIN, float(wait) if wait.isdecimal() else 0.0
            raise CallFailed(f"answered {error.code}", again, after) from None
        try:
            text = str(json.loads(answer)["choices"][0]["message"]["content"])
        except (ValueError, LookupError, TypeError):
            raise CallFailed("answered something that is no chat completion") from None
        number = text.rpartition("</think>")[2].strip()
        if not re.fullmatch(r"[-+]?\d+(\.\d+)?", number, re.ASCII):
            raise CallFailed(f"answered {number[:60]!r}, no number", again=False)
        return float(number)
