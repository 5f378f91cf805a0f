"""A reward function that asks a language model on an OpenAI-compatible server for a number."""

import email.utils
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_lab.config.sections import JudgeConfig
from grpo_lab.errors import ConfigError, RewardError
from grpo_lab.tasks.conversations import Prompt, text_of
from grpo_lab.tasks.judge_pool import CallFailed, brief, close_with
from grpo_lab.tasks.reward_calls import OFFERED

if TYPE_CHECKING:
    import httpx

START_LIMIT = 5.0
"""Seconds that a server has at least for its answer before the run begins."""
_AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504, 529))
"""Status codes after which the same request may succeed."""
_NUMBER = re.compile(
    r"(?:(?:final )?(?:score|rating|reward|grade) ?(?::|=|is) ?)?([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\.?",
    re.ASCII | re.IGNORECASE,
)


class HttpJudge:
    """Asks the server at `judge.url` for the reward of each completion, in TRL's signature; to be awaited.

    It has no time limit of its own: the pool ends its calls. Raises ConfigError for settings that cannot work, and
    RewardError for a server that does not answer, before the run begins.
    """

    def __init__(self, settings: JudgeConfig) -> None:
        import httpx  # slow to import, and no other reward function needs it

        if not settings.workers:
            raise ConfigError("http_judge needs a pool of calls: judge.workers = 0; set 1 or more, such as 8")
        _check_url(settings.url)
        self._settings = settings
        self._key = _key(settings.api_key_env)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        base = settings.url.rstrip("/").removesuffix("/chat/completions")
        self._ask(f"{base}/models", headers)
        self._url = f"{base}/chat/completions"
        self._client = httpx.AsyncClient(headers=headers, timeout=None, limits=httpx.Limits(max_connections=None))
        close_with(self, self._client.aclose)  # else its connections stay open as long as the process

    async def __call__(self, prompts: Sequence[Prompt], completions: Sequence[Prompt], **columns: Any) -> list[float]:
        """The reward of each completion. Raises CallFailed for an answer without a number."""
        own = {name: values for name, values in columns.items() if name not in OFFERED}
        filled = [
            {name: values[row] for name, values in own.items()}
            | {"prompt": text_of(prompt), "completion": text_of(text)}
            for row, (prompt, text) in enumerate(zip(prompts, completions, strict=True))
        ]
        return [await self._score(fill(self._settings.prompt, values)) for values in filled]

    def _ask(self, url: str, headers: Mapping[str, str]) -> None:
        """Raise RewardError unless the server answers, be it that it does not know this address."""
        import httpx

        try:
            status = httpx.get(url, headers=headers, timeout=max(START_LIMIT, self._settings.timeout_s)).status_code
        except httpx.HTTPError as error:
            said = f"{type(error).__name__}: {self._hidden(str(error))}"
            raise RewardError(f"judge.url = {self._settings.url}: no answer ({said}); start the server first") from None
        if status in (401, 403):
            raise RewardError(f"judge.url = {self._settings.url}: it answered {status}; set judge.api_key_env")

    async def _score(self, message: str) -> float:
        request: dict[str, Any] = {"messages": [{"role": "user", "content": message}]}
        request |= {"model": self._settings.model} if self._settings.model else {}
        request |= {"temperature": self._settings.temperature} if self._settings.temperature is not None else {}
        response = await self._client.post(self._url, json=request)
        if not response.is_success:
            after = wait_of(response.headers.get("Retry-After", ""))
            raise CallFailed(f"answered {response.status_code}", response.status_code in _AGAIN, after)
        answer = _content(response)
        found = number_in(answer)
        if found is None:
            raise CallFailed(f"answered {brief(self._hidden(answer))!r}, no number", again=False)
        return found

    def _hidden(self, text: str) -> str:
        """The text without the key, which a server may send back."""
        return text.replace(self._key, "(key)") if self._key else text


def number_in(answer: str) -> float | None:
    """The number that an answer is, or None where it says more or less than one number.

    The number may follow the word score, rating, reward or grade and one of `:`, `=`, `is`. Spaces, quotes, braces,
    `*` and backticks do not count, nor does everything up to `</think>`. Neither 7/10 nor 70 % is clear.

    >>> [number_in(text) for text in ("7", " **Score:** -0.5.", '{"score": 7}', "7/10", "7 or 8", "I think so")]
    [7.0, -0.5, 7.0, None, None, None]
    """
    plain = re.sub(r"[\s`*\"'{}]+", " ", answer.rpartition("</think>")[2]).strip()
    found = _NUMBER.fullmatch(plain)
    return float(found[1]) if found and math.isfinite(float(found[1])) else None


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with the value of each {name} that is known; braces within a value stay as they are.

    >>> fill("{prompt} {completion} {x}", {"prompt": "1+1=", "completion": "{prompt}"})
    '1+1= {prompt} {x}'
    """
    return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), template)


def wait_of(header: str) -> float:
    """The seconds of a Retry-After header, given as a number or as a date; 0.0 for any other text.

    >>> wait_of("3"), wait_of("Wed, 21 Oct 2015 07:28:00 GMT"), wait_of("soon")
    (3.0, 0.0, 0.0)
    """
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _content(response: "httpx.Response") -> str:
    """The text of a chat completion. Raises CallFailed for a body that is none."""
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        raise CallFailed("answered something that is no chat completion") from None
    return "" if content is None else str(content)


def _check_url(url: str) -> None:
    """Raise ConfigError for anything but an address without a password in it."""
    import httpx

    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(
            f"judge.url = {url!r}: is no address ({error}); give one such as http://host:8000/v1"
        ) from None
    if parsed.userinfo or parsed.query:  # the message leaves the value out
        raise ConfigError("judge.url holds a user name, a password or a query: a key goes into judge.api_key_env")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"judge.url = {url!r}: give an address such as http://localhost:8000/v1")


def _key(variable: str) -> str:
    """The key in that environment variable, "" where none is named.

    Raises ConfigError, whose message shows neither the value nor the name: some users give the key itself.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError("judge.api_key_env names a variable that is not set; export it, or give its right name")
    if not re.fullmatch(r"[!-~]+", key):  # libraries quote a header that they refuse
        raise ConfigError("judge.api_key_env names a variable whose value is no key: it holds spaces or is not ASCII")
    return key
