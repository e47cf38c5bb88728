// The OpenAI Agents SDK.
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { apiKey, check, comesBack, eachBroken, expect, model, plainURL, refused, slow, step, timeout, twice, weather } from "./check.mjs";

setTracingDisabled(true);

const apis = { chat: OpenAIChatCompletionsModel, responses: OpenAIResponsesModel };
const forecast = tool({ name: weather.name, description: weather.description, parameters: z.object({ city: z.string() }), execute: weather.result });

for (const [api, Model] of Object.entries(apis)) {
  const agent = (baseURL, more, tools = []) =>
    new Agent({ name: "Forecaster", instructions: "Be brief.", tools, model: new Model(new OpenAI({ baseURL, apiKey, ...more }), model) });

  await check(api, (baseURL) => twice(async (question) => (await run(agent(baseURL), question)).finalOutput, "What is new?"));

  await check(`${api} stream`, (baseURL) => twice(async (question) => {
    const result = await run(agent(baseURL), question, { stream: true });
    let said = "";
    for await (const piece of result.toTextStream()) said += piece;
    await result.completed;
    return said;
  }, "What is new?"));

  await check(`${api} tools`, async (baseURL) => {
    let last;
    for (let n = 0; n < 2; n++) {
      const { finalOutput } = await run(agent(baseURL, {}, [forecast]), weather.question);
      expect(finalOutput.includes(weather.answer) && finalOutput === (last ??= finalOutput), "answer", finalOutput);
    }
    return last;
  });

  await check(`refused ${api}`, (baseURL) => refused(() => run(agent(baseURL), "one")));

  await check(`broken ${api}`, (baseURL) => eachBroken(async (question, seen) => {
    const result = await run(agent(baseURL), question, { stream: true });
    for await (const _ of result) seen();
    await result.completed;
  }));

  if (api === "responses") {
    await check("time-out", async (baseURL) => {
      const { finalOutput } = await run(agent(baseURL, { timeout, maxRetries: 5 }), slow);
      expect(finalOutput.includes("Take your time."), finalOutput);
    });

    await check("left stream", (baseURL) => comesBack(async function* (question) {
      yield* (await run(agent(baseURL), question, { stream: true })).toTextStream();
    }, async (question) => (await run(agent(baseURL), question)).finalOutput));

    await check("step by header", async () => {
      const { finalOutput } = await run(agent(plainURL, { defaultHeaders: { "X-LLMProxy-Step": step("step by header") } }), "Hello");
      expect(finalOutput.includes("Hello"), finalOutput);
    });
  }
}
