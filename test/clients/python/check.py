"""What the scripts of all clients share: where to call, and how to tell what came
of it. A script prints one JSON line a check; the Go test that started it knows
which checks it must print and what the server must have seen of each."""

import json
import os
import traceback
from urllib.parse import quote

URL, CLIENT = os.environ["LLMPROXY_URL"], os.environ["LLMPROXY_CLIENT"]
KEY = "sk-test"
MODEL = "gpt-4.1-mini"
EMBEDDING_MODEL = "text-embedding-3-small"
PLAIN_URL = URL + "/v1"  # names no step

# VECTOR is what EMBEDDING_MODEL makes of TEXT.
TEXT, VECTOR = json.loads(os.environ["LLMPROXY_VECTOR"])

# SLOW is answered long after TIMEOUT, in seconds.
SLOW = "Take your time. [[sim: delay=3s]]"
TIMEOUT = 1.0

# LONG is answered word by word for a second, and outlives a client that leaves.
LONG = "Go on. [[sim: words=50 chunk_delay=20ms]]"

# BROKEN are questions whose answers break off in every way that an upstream has.
BROKEN = [f"Talk until it breaks. [[sim: {way}]]" for way in ("cut_after=6", "end_after=6", "error_after=6")]

WEATHER = 'How is the weather? [[sim: tool=get_weather:{"city":"Paris"} tool=get_weather:{"city":"Lyon"}]]'
WEATHER_ANSWER = "It has 19 degrees in Lyon."  # the simulated model repeats the last result


def get_weather(city: str) -> str:
    """The weather of a city"""
    return f"It has {len(city) + 15} degrees in {city}."


def step(name):
    """The name that a check calls under."""
    return f"{CLIENT} {name}"


def check(name):
    """Runs the function with the base URL of its step. What it returns is a detail
    to show, what it raises a failure."""

    def run(work):
        line = {"check": name, "ok": True}
        try:
            line["detail"] = work(f"{URL}/steps/{quote(step(name))}/v1")
        except Exception:
            line |= {"ok": False, "detail": traceback.format_exc()}
        print(json.dumps(line), flush=True)
        return work

    return run


def expect(holds, *detail):
    if not holds:
        raise AssertionError(f"expected otherwise: {detail}")


def twice(ask, question="What is new?"):
    """Asks the same question two times, as a retry does, and expects the same answer."""
    first, again = ask(question), ask(question)
    expect("[simulated]" in first and question in first, first)
    expect(again == first, "the retry got", again, "after", first)
    return first


def raised(work, *args):
    """Returns what work raises."""
    try:
        result = work(*args)
    except Exception as err:
        return err
    raise AssertionError(f"nothing was raised, but returned: {result!r}")


def refused(work):
    """Expects that the error of a refusal shows its user why."""
    err = raised(work)
    expect("is over its budget" in str(err), str(err))
    return str(err)


def each_broken(stream):
    """Expects an error of every stream that breaks off."""
    messages = []
    for question in BROKEN:
        pieces = []

        def read():
            for piece in stream(question):
                pieces.append(piece)

        messages.append(str(raised(read)))
        expect(pieces, "no piece came before", messages[-1])
    return " | ".join(messages)


def comes_back(stream, whole):
    """Leaves the stream of a long answer after its first piece and then asks again for
    the whole, as a stream and as JSON."""
    pieces = stream(LONG)
    next(piece for piece in pieces if piece)
    pieces.close()
    said, answer = "".join(stream(LONG)), whole(LONG)
    expect("Go on." in said and answer == said, answer, said)


def same_vector(got):
    expect(len(got) == len(VECTOR), "a vector of", len(got), "instead of", len(VECTOR))
    expect(all(abs(x - y) < 1e-6 for x, y in zip(got, VECTOR)), "a wrong vector", got[:3], VECTOR[:3])
