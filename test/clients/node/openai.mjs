// The official library, in the major version that the first argument names.
import { apiKey, check, comesBack, eachBroken, embeddingModel, expect, model, plainURL, refused, sameVector, slow, step, text, timeout, twice, waitsItsTurn, weather } from "./check.mjs";

const { default: OpenAI } = await import(process.argv[2]);
const connect = (baseURL, more) => new OpenAI({ baseURL, apiKey, ...more });
const said = ({ output }) => output.flatMap((item) => item.content ?? []).map((part) => part.text).join(""); // helpers of 4.x lack output_text
const user = (content) => [{ role: "user", content }];

const ask = (baseURL) => async (question) =>
  (await connect(baseURL).chat.completions.create({ model, messages: user(question) })).choices[0].message.content;
const busy = check("call in progress", (baseURL) => waitsItsTurn(ask(baseURL)));

await check("chat", (baseURL) => twice(async (question) => {
  const answer = await connect(baseURL).chat.completions.create({ model, messages: user(question) });
  expect(answer.usage.total_tokens > 0, "usage", answer.usage);
  return answer.choices[0].message.content;
}, "What is new?"));

await check("chat stream", (baseURL) => twice(async (question) => {
  const stream = await connect(baseURL).chat.completions.create({ model, messages: user(question), stream: true });
  let said = "";
  for await (const chunk of stream) said += chunk.choices[0].delta.content ?? ""; // fails on a usage chunk, which nobody asked for
  return said;
}, "What is new?"));

// The first run streams by the library's helper, the second does not.
await check("chat tools", async (baseURL) => {
  const client = connect(baseURL);
  const chat = client.chat.completions.stream ? client.chat.completions : client.beta.chat.completions;
  const { name, description, parameters } = weather;
  const tools = [{ type: "function", function: { name, description, parameters } }];
  let last;
  for (const complete of [(body) => chat.stream(body).finalChatCompletion(), (body) => client.chat.completions.create(body)]) {
    const messages = user(weather.question);
    const { message } = (await complete({ model, messages, tools })).choices[0];
    expect(message.tool_calls.length === 2, "message", message);
    const { content, tool_calls } = message;
    messages.push({ role: "assistant", content, tool_calls: tool_calls.map(({ id, function: f }) => ({ id, type: "function", function: { name: f.name, arguments: f.arguments } })) });
    for (const call of tool_calls) {
      messages.push({ role: "tool", tool_call_id: call.id, content: weather.result(JSON.parse(call.function.arguments)) });
    }
    const said = (await complete({ model, messages, tools })).choices[0].message.content;
    expect(said.includes(weather.answer) && said === (last ??= said), "answer", said);
  }
  return last;
});

await check("responses", (baseURL) => twice(async (question) => {
  const response = await connect(baseURL).responses.create({ model, input: question });
  expect(response.usage.total_tokens > 0, "usage", response.usage);
  return response.output_text;
}, "What is new?"));

await check("responses stream", (baseURL) => twice(async (question) => {
  let said = "", completed;
  for await (const event of await connect(baseURL).responses.create({ model, input: question, stream: true })) {
    if (event.type === "response.output_text.delta") said += event.delta;
    if (event.type === "response.completed") completed = event.response;
  }
  expect(completed?.status === "completed" && completed.output[0].content[0].text === said, "completed", completed);
  return said;
}, "What is new?"));

await check("responses tools", async (baseURL) => {
  const client = connect(baseURL);
  const { name, description, parameters } = weather;
  const tools = [{ type: "function", name, description, parameters, strict: true }];
  let last;
  for (const respond of [(body) => client.responses.stream(body).finalResponse(), (body) => client.responses.create(body)]) {
    const input = user(weather.question);
    const { output } = await respond({ model, input, tools });
    const calls = output.filter((item) => item.type === "function_call");
    expect(calls.length === 2, "output", output);
    for (const { type, id, call_id, name, arguments: args } of calls) input.push({ type, id, call_id, name, arguments: args });
    for (const call of calls) {
      input.push({ type: "function_call_output", call_id: call.call_id, output: weather.result(JSON.parse(call.arguments)) });
    }
    const answer = said(await respond({ model, input, tools }));
    expect(answer.includes(weather.answer) && answer === (last ??= answer), "answer", answer);
  }
  return last;
});

await check("embeddings", async (baseURL) => {
  for (let run = 0; run < 2; run++) {
    const { data } = await connect(baseURL).embeddings.create({ model: embeddingModel, input: text });
    sameVector(data[0].embedding);
  }
});

await check("time-out", async (baseURL) => {
  const client = connect(baseURL, { timeout, maxRetries: 5 });
  const answer = await client.chat.completions.create({ model, messages: user(slow) });
  expect(answer.choices[0].message.content.includes("Take your time."), answer);
});

await check("left stream", (baseURL) => comesBack(async function* (question) {
  for await (const chunk of await connect(baseURL).chat.completions.create({ model, messages: user(question), stream: true })) {
    yield chunk.choices[0].delta.content ?? "";
  }
}, ask(baseURL)));

await check("refused chat", (baseURL) => refused(() => connect(baseURL).chat.completions.create({ model, messages: user("one") })));
await check("refused responses", (baseURL) => refused(() => connect(baseURL).responses.create({ model, input: "one", stream: true })));

await check("broken chat", (baseURL) => eachBroken(async (question, seen) => {
  for await (const _ of await connect(baseURL).chat.completions.create({ model, messages: user(question), stream: true })) seen();
}));
await check("broken responses", (baseURL) => eachBroken(async (question, seen) => {
  for await (const _ of await connect(baseURL).responses.create({ model, input: question, stream: true })) seen();
}));

await check("step by header", async () => {
  const client = connect(plainURL, { defaultHeaders: { "X-LLMProxy-Step": step("step by header") } });
  const { response } = await client.chat.completions.create({ model, messages: user("Hello") }).withResponse();
  expect(response.headers.get("x-llmproxy-cache") === "miss", Object.fromEntries(response.headers));
});

await busy;
