// LlamaIndex.
import { OpenAI, OpenAIEmbedding, OpenAIResponses } from "@llamaindex/openai";
import { tool } from "@llamaindex/core/tools";
import { z } from "zod";
import { apiKey, check, comesBack, eachBroken, embeddingModel, expect, model, plainURL, refused, sameVector, slow, step, text, timeout, twice, weather } from "./check.mjs";

const apis = { chat: OpenAI, responses: OpenAIResponses };
const user = (content) => [{ role: "user", content }];
const forecast = tool({ name: weather.name, description: weather.description, parameters: z.object({ city: z.string() }), execute: weather.result });

for (const [api, LLM] of Object.entries(apis)) {
  const connect = (baseURL, more) => new LLM({ model, apiKey, baseURL, ...more });

  await check(api, (baseURL) => twice(async (question) => (await connect(baseURL).chat({ messages: user(question) })).message.content, "What is new?"));

  await check(`${api} stream`, (baseURL) => twice(async (question) => {
    let said = "";
    for await (const { raw, delta } of await connect(baseURL).chat({ messages: user(question), stream: true })) {
      if (api === "chat" || raw.type === "response.output_text.delta") said += delta; // other events repeat the last delta
    }
    return said;
  }, "What is new?"));

  await check(`${api} tools`, async (baseURL) => {
    let last;
    for (let run = 0; run < 2; run++) {
      const llm = connect(baseURL), messages = user(weather.question);
      const { newMessages, toolCalls } = await llm.exec({ messages, tools: [forecast] });
      expect(toolCalls.length === 2, "tool calls", toolCalls);
      const second = await llm.exec({ messages: [...messages, ...newMessages], tools: [forecast] });
      const said = second.newMessages.at(-1).content;
      expect(said.includes(weather.answer) && said === (last ??= said), "answer", said);
    }
    return last;
  });

  await check(`refused ${api}`, (baseURL) => refused(() => connect(baseURL).chat({ messages: user("one") })));

  await check(`broken ${api}`, (baseURL) => eachBroken(async (question, seen) => {
    for await (const _ of await connect(baseURL).chat({ messages: user(question), stream: true })) seen();
  }));
}

await check("embeddings", async (baseURL) => {
  for (let run = 0; run < 2; run++) {
    sameVector(await new OpenAIEmbedding({ model: embeddingModel, apiKey, baseURL }).getTextEmbedding(text));
  }
});

await check("time-out", async (baseURL) => {
  const { message } = await new OpenAI({ model, apiKey, baseURL, timeout }).chat({ messages: user(slow) });
  expect(message.content.includes("Take your time."), message.content);
});

await check("left stream", (baseURL) => {
  const llm = () => new OpenAI({ model, apiKey, baseURL });
  return comesBack(async function* (question) {
    for await (const { delta } of await llm().chat({ messages: user(question), stream: true })) yield delta;
  }, async (question) => (await llm().chat({ messages: user(question) })).message.content);
});

await check("step by header", async () => {
  const llm = new OpenAI({ model, apiKey, baseURL: plainURL, additionalSessionOptions: { defaultHeaders: { "X-LLMProxy-Step": step("step by header") } } });
  const { message } = await llm.chat({ messages: user("Hello") });
  expect(message.content.includes("Hello"), message.content);
});
