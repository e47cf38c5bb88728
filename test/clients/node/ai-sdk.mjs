// The Vercel AI SDK.
import { createOpenAI } from "@ai-sdk/openai";
import { embed, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { apiKey, check, comesBack, eachBroken, embeddingModel, expect, model, plainURL, refused, sameVector, slow, step, text, timeout, twice, until, waitsItsTurn, weather } from "./check.mjs";

const connect = (baseURL, more) => createOpenAI({ baseURL, apiKey, ...more });
const apis = { chat: (provider) => provider.chat(model), responses: (provider) => provider(model) };
const silent = { onError() {} }; // errors are read from the stream

const ask = (baseURL) => async (prompt) => (await generateText({ model: connect(baseURL).chat(model), prompt })).text;
const busy = check("call in progress", (baseURL) => waitsItsTurn(ask(baseURL)));

for (const [api, choose] of Object.entries(apis)) {
  await check(api, (baseURL) => twice(async (prompt) => {
    const { text, usage } = await generateText({ model: choose(connect(baseURL)), prompt });
    expect(usage.totalTokens > 0, "usage", usage);
    return text;
  }, "What is new?"));

  await check(`${api} stream`, (baseURL) => twice(async (prompt) => {
    let said = "";
    for await (const piece of streamText({ model: choose(connect(baseURL)), prompt }).textStream) said += piece;
    return said;
  }, "What is new?"));

  await check(`${api} tools`, async (baseURL) => {
    const tools = { [weather.name]: tool({ description: weather.description, inputSchema: z.object({ city: z.string() }), execute: weather.result }) };
    let last;
    for (let run = 0; run < 2; run++) {
      const { text } = await generateText({ model: choose(connect(baseURL)), prompt: weather.question, tools, stopWhen: stepCountIs(2) });
      expect(text.includes(weather.answer) && text === (last ??= text), "answer", text);
    }
    return last;
  });

  await check(`refused ${api}`, (baseURL) => refused(() => generateText({ model: choose(connect(baseURL)), prompt: "one" })));

  await check(`broken ${api}`, (baseURL) => eachBroken(async (prompt, seen) => {
    for await (const part of streamText({ model: choose(connect(baseURL)), prompt, ...silent }).fullStream) {
      if (part.type === "error") throw part.error instanceof Error ? part.error : new Error(JSON.stringify(part.error));
      seen();
    }
  }));
}

await check("embeddings", async (baseURL) => {
  for (let run = 0; run < 2; run++) {
    const { embedding } = await embed({ model: connect(baseURL).embedding(embeddingModel), value: text });
    sameVector(embedding);
  }
});

// It has no time-out of its own and does not retry what the caller aborts.
await check("time-out", async (baseURL) => {
  const { text } = await until(() => generateText({ model: connect(baseURL).chat(model), prompt: slow, abortSignal: AbortSignal.timeout(timeout) }));
  expect(text.includes("Take your time."), text);
});

await check("left stream", (baseURL) => comesBack(async function* (prompt) {
  const leaving = new AbortController();
  try {
    yield* streamText({ model: connect(baseURL).chat(model), prompt, abortSignal: leaving.signal, ...silent }).textStream;
  } finally {
    leaving.abort();
  }
}, ask(baseURL)));

await check("step by header", async () => {
  const provider = connect(plainURL, { headers: { "X-LLMProxy-Step": step("step by header") } });
  const { response } = await generateText({ model: provider(model), prompt: "Hello" });
  expect(response.headers["x-llmproxy-cache"] === "miss", response.headers);
});

await busy;
