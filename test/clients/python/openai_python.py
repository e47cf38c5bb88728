"""The official library."""

import json

from openai import OpenAI

from check import EMBEDDING_MODEL, KEY, MODEL, PLAIN_URL, SLOW, TEXT, TIMEOUT, WEATHER, WEATHER_ANSWER
from check import check, comes_back, each_broken, expect, get_weather, refused, same_vector, step, twice

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def connect(base_url, **more):
    return OpenAI(base_url=base_url, api_key=KEY, **more)


def user(content):
    return [{"role": "user", "content": content}]


@check("chat")
def _(base_url):
    def ask(question):
        answer = connect(base_url).chat.completions.create(model=MODEL, messages=user(question))
        expect(answer.usage.total_tokens > 0, answer.usage)
        return answer.choices[0].message.content

    return twice(ask)


@check("chat stream")
def _(base_url):
    def ask(question):
        stream = connect(base_url).chat.completions.create(model=MODEL, messages=user(question), stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    return twice(ask)


@check("chat tools")
def _(base_url):
    """The first run streams by the library's helper, the second does not."""
    completions = connect(base_url).chat.completions
    function = {"name": "get_weather", "description": get_weather.__doc__, "parameters": PARAMETERS}
    tools = [{"type": "function", "function": function}]

    def streamed(messages):
        with completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
            return stream.get_final_completion()

    def whole(messages):
        return completions.create(model=MODEL, messages=messages, tools=tools)

    answers = []
    for complete in (streamed, whole):
        messages = user(WEATHER)
        message = complete(messages).choices[0].message
        expect(len(message.tool_calls) == 2, message)
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in message.tool_calls
        ]
        messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answers.append(complete(messages).choices[0].message.content)
    expect(WEATHER_ANSWER in answers[0] and answers[0] == answers[1], answers)
    return answers[0]


@check("responses")
def _(base_url):
    def ask(question):
        response = connect(base_url).responses.create(model=MODEL, input=question)
        expect(response.usage.total_tokens > 0, response.usage)
        return response.output_text

    return twice(ask)


@check("responses stream")
def _(base_url):
    def ask(question):
        said, completed = "", None
        for event in connect(base_url).responses.create(model=MODEL, input=question, stream=True):
            if event.type == "response.output_text.delta":
                said += event.delta
            if event.type == "response.completed":
                completed = event.response
        expect(completed is not None and completed.output_text == said, completed)
        return said

    return twice(ask)


@check("responses tools")
def _(base_url):
    responses = connect(base_url).responses
    tools = [
        {"type": "function", "name": "get_weather", "description": get_weather.__doc__, "parameters": PARAMETERS, "strict": True}
    ]

    def streamed(items):
        with responses.stream(model=MODEL, input=items, tools=tools) as stream:
            return stream.get_final_response()

    def whole(items):
        return responses.create(model=MODEL, input=items, tools=tools)

    answers = []
    for respond in (streamed, whole):
        items = user(WEATHER)
        calls = [item for item in respond(items).output if item.type == "function_call"]
        expect(len(calls) == 2, calls)
        for c in calls:
            items.append({"type": c.type, "id": c.id, "call_id": c.call_id, "name": c.name, "arguments": c.arguments})
        for c in calls:
            output = get_weather(**json.loads(c.arguments))
            items.append({"type": "function_call_output", "call_id": c.call_id, "output": output})
        answers.append(respond(items).output_text)
    expect(WEATHER_ANSWER in answers[0] and answers[0] == answers[1], answers)
    return answers[0]


@check("embeddings")
def _(base_url):
    for _ in range(2):
        same_vector(connect(base_url).embeddings.create(model=EMBEDDING_MODEL, input=TEXT).data[0].embedding)


@check("time-out")
def _(base_url):
    client = connect(base_url, timeout=TIMEOUT, max_retries=5)
    answer = client.chat.completions.create(model=MODEL, messages=user(SLOW)).choices[0].message.content
    expect("Take your time." in answer, answer)


@check("left stream")
def _(base_url):
    completions = connect(base_url).chat.completions

    def stream(question):
        with completions.create(model=MODEL, messages=user(question), stream=True) as chunks:
            for chunk in chunks:
                yield chunk.choices[0].delta.content or ""

    def whole(question):
        return completions.create(model=MODEL, messages=user(question)).choices[0].message.content

    comes_back(stream, whole)


@check("refused chat")
def _(base_url):
    return refused(lambda: connect(base_url).chat.completions.create(model=MODEL, messages=user("one")))


@check("refused responses")
def _(base_url):
    return refused(lambda: connect(base_url).responses.create(model=MODEL, input="one", stream=True))


@check("broken chat")
def _(base_url):
    return each_broken(
        lambda question: connect(base_url).chat.completions.create(model=MODEL, messages=user(question), stream=True)
    )


@check("broken responses")
def _(base_url):
    return each_broken(lambda question: connect(base_url).responses.create(model=MODEL, input=question, stream=True))


@check("step by header")
def _(_base_url):
    client = connect(PLAIN_URL, default_headers={"X-LLMProxy-Step": step("step by header")})
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user("Hello"))
    expect(raw.headers["x-llmproxy-cache"] == "miss", raw.headers)
