"""LangChain."""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from check import EMBEDDING_MODEL, KEY, MODEL, PLAIN_URL, SLOW, TEXT, TIMEOUT, WEATHER, WEATHER_ANSWER
from check import check, comes_back, each_broken, expect, get_weather, refused, same_vector, step, twice


def connect(base_url, **more):
    return ChatOpenAI(model=MODEL, api_key=KEY, base_url=base_url, **more)


def checks(api, **options):
    @check(api)
    def _(base_url):
        def ask(question):
            message = connect(base_url, **options).invoke(question)
            expect(message.usage_metadata["total_tokens"] > 0, message)
            return message.text

        return twice(ask)

    @check(f"{api} stream")
    def _(base_url):
        return twice(lambda question: "".join(chunk.text for chunk in connect(base_url, **options).stream(question)))

    @check(f"{api} tools")
    def _(base_url):
        answers = []
        for _ in range(2):
            llm = connect(base_url, **options).bind_tools([tool(get_weather)])
            messages = [HumanMessage(WEATHER)]
            first = llm.invoke(messages)
            expect(len(first.tool_calls) == 2, first)
            messages.append(first)
            for call in first.tool_calls:
                messages.append(ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]))
            answers.append(llm.invoke(messages).text)
        expect(WEATHER_ANSWER in answers[0] and answers[0] == answers[1], answers)
        return answers[0]

    @check(f"refused {api}")
    def _(base_url):
        return refused(lambda: connect(base_url, **options).invoke("one"))

    @check(f"broken {api}")
    def _(base_url):
        return each_broken(connect(base_url, **options).stream)


checks("chat")
checks("responses", use_responses_api=True)


@check("embeddings")
def _(base_url):
    """It would count the text by a vocabulary that it downloads."""
    for _ in range(2):
        embeddings = OpenAIEmbeddings(model=EMBEDDING_MODEL, api_key=KEY, base_url=base_url, check_embedding_ctx_length=False)
        same_vector(embeddings.embed_query(TEXT))


@check("time-out")
def _(base_url):
    answer = connect(base_url, timeout=TIMEOUT, max_retries=5).invoke(SLOW).text
    expect("Take your time." in answer, answer)


@check("left stream")
def _(base_url):
    llm = connect(base_url)
    comes_back(lambda question: (chunk.text for chunk in llm.stream(question)), lambda question: llm.invoke(question).text)


@check("step by header")
def _(_base_url):
    answer = connect(PLAIN_URL, default_headers={"X-LLMProxy-Step": step("step by header")}).invoke("Hello").text
    expect("Hello" in answer, answer)
