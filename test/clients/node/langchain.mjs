// LangChain.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { apiKey, check, comesBack, eachBroken, embeddingModel, expect, model, plainURL, refused, sameVector, slow, step, text, timeout, twice, waitsItsTurn, weather } from "./check.mjs";

const connect = (baseURL, more) => new ChatOpenAI({ model, apiKey, configuration: { baseURL }, ...more });

const ask = (baseURL) => async (question) => (await connect(baseURL).invoke(question)).text;
const busy = check("call in progress", (baseURL) => waitsItsTurn(ask(baseURL)));

for (const api of ["chat", "responses"]) {
  const useResponsesApi = api === "responses";

  await check(api, (baseURL) => twice(async (question) => {
    const message = await connect(baseURL, { useResponsesApi }).invoke(question);
    expect(message.usage_metadata.total_tokens > 0, "usage", message.usage_metadata);
    return message.text;
  }, "What is new?"));

  await check(`${api} stream`, (baseURL) => twice(async (question) => {
    let said = "";
    for await (const chunk of await connect(baseURL, { useResponsesApi }).stream(question)) said += chunk.text;
    return said;
  }, "What is new?"));

  await check(`${api} tools`, async (baseURL) => {
    const forecast = tool(weather.result, { name: weather.name, description: weather.description, schema: z.object({ city: z.string() }) });
    let last;
    for (let run = 0; run < 2; run++) {
      const llm = connect(baseURL, { useResponsesApi }).bindTools([forecast]);
      const messages = [new HumanMessage(weather.question)];
      const first = await llm.invoke(messages);
      expect(first.tool_calls.length === 2, "tool calls", first.tool_calls);
      messages.push(first);
      for (const call of first.tool_calls) messages.push(new ToolMessage({ content: weather.result(call.args), tool_call_id: call.id }));
      const said = (await llm.invoke(messages)).text;
      expect(said.includes(weather.answer) && said === (last ??= said), "answer", said);
    }
    return last;
  });

  await check(`refused ${api}`, (baseURL) => refused(() => connect(baseURL, { useResponsesApi }).invoke("one")));

  await check(`broken ${api}`, (baseURL) => eachBroken(async (question, seen) => {
    for await (const _ of await connect(baseURL, { useResponsesApi }).stream(question)) seen();
  }));
}

await check("embeddings", async (baseURL) => {
  for (let run = 0; run < 2; run++) {
    sameVector(await new OpenAIEmbeddings({ model: embeddingModel, apiKey, configuration: { baseURL } }).embedQuery(text));
  }
});

await check("time-out", async (baseURL) => {
  const message = await connect(baseURL, { timeout }).invoke(slow);
  expect(message.text.includes("Take your time."), message.text);
});

await check("left stream", (baseURL) => comesBack(async function* (question) {
  for await (const chunk of await connect(baseURL).stream(question)) yield chunk.text;
}, ask(baseURL)));

await check("step by header", async () => {
  const llm = new ChatOpenAI({ model, apiKey, configuration: { baseURL: plainURL, defaultHeaders: { "X-LLMProxy-Step": step("step by header") } } });
  expect((await llm.invoke("Hello")).text.includes("Hello"), "no answer");
});

await busy;
