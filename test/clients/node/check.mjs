// What the scripts of all clients share: where to call, and how to tell what
// came of it. A script prints one JSON line a check; the Go test that started it
// knows which checks it must print and what the server must have seen of each.

const { LLMPROXY_URL, LLMPROXY_CLIENT, LLMPROXY_VECTOR } = process.env;

export const apiKey = "sk-test";
export const model = "gpt-4.1-mini";
export const embeddingModel = "text-embedding-3-small";

// step is the name that a check calls under.
export const step = (name) => `${LLMPROXY_CLIENT} ${name}`;

// base is the base URL that names the step of a check.
export const base = (name) => `${LLMPROXY_URL}/steps/${encodeURIComponent(step(name))}/v1`;

// plainURL is the base URL that names no step.
export const plainURL = `${LLMPROXY_URL}/v1`;

// vector is what embeddingModel makes of text.
export const [text, vector] = JSON.parse(LLMPROXY_VECTOR);

// slow is answered long after the time-outs that clients set in milliseconds.
export const slow = "Take your time. [[sim: delay=3s]]";
export const timeout = 1000;

// long is answered word by word for a second, and outlives a client that leaves.
export const long = "Go on. [[sim: words=50 chunk_delay=20ms]]";

// broken are questions whose answers break off in every way that an upstream has.
export const broken = ["cut_after=6", "end_after=6", "error_after=6"].map((way) => `Talk until it breaks. [[sim: ${way}]]`);

export const weather = {
  question: `How is the weather? [[sim: tool=get_weather:{"city":"Paris"} tool=get_weather:{"city":"Lyon"}]]`,
  name: "get_weather",
  description: "The weather of a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
  result: ({ city }) => `It has ${city.length + 15} degrees in ${city}.`,
  answer: "It has 19 degrees in Lyon.", // the simulated model repeats the last result
};

// check runs work with the base URL of its step. What it returns is a detail to
// show, what it throws a failure.
export async function check(name, work) {
  const line = { check: name, ok: true };
  try {
    line.detail = await work(base(name));
  } catch (err) {
    Object.assign(line, { ok: false, detail: err.stack ?? String(err) });
  }
  console.log(JSON.stringify(line));
}

export function expect(holds, ...detail) {
  if (!holds) throw new Error(`expected otherwise: ${detail.map((d) => (typeof d === "string" ? d : JSON.stringify(d))).join(" ")}`);
}

// twice asks the same question two times, as a retry does, and expects the same
// answer.
export async function twice(ask, question) {
  const [first, again] = [await ask(question), await ask(question)];
  expect(first.includes("[simulated]") && first.includes(question), "answer", first);
  expect(again === first, "the retry got", again, "after", first);
  return first;
}

// raised returns what work throws.
export async function raised(work) {
  let result;
  try {
    result = await work();
  } catch (err) {
    return err;
  }
  throw new Error(`nothing was raised, but returned: ${JSON.stringify(result)}`);
}

// refused expects that the error of a refusal shows its user why.
export async function refused(work) {
  const err = await raised(work);
  expect(err.message.includes("is over its budget"), "message", err.message);
  return err.message;
}

// eachBroken expects an error of every stream that breaks off. The work calls
// seen for each piece that it got before.
export async function eachBroken(work) {
  const messages = [];
  for (const question of broken) {
    let pieces = 0;
    const err = await raised(() => work(question, () => pieces++));
    expect(pieces > 0, "no piece came before", err.stack);
    messages.push(err.message);
  }
  return messages.join(" | ");
}

// comesBack leaves the stream of a long answer after its first piece and then asks
// again for the whole, as a stream and as JSON.
export async function comesBack(stream, whole) {
  for await (const piece of await stream(long)) if (piece) break;
  let said = "";
  for await (const piece of await stream(long)) said += piece;
  const answer = await whole(long);
  expect(said.includes("Go on.") && answer === said, "the whole", answer, "the stream", said);
}

// waitsItsTurn asks the same at once two times, at a step that lets nobody wait for
// a running call: one of them is told to come again in ten seconds, and does.
export async function waitsItsTurn(ask) {
  const [one, other] = await Promise.all([ask(slow), ask(slow)]);
  expect(one.includes("Take your time.") && other === one, one, other);
}

export function sameVector(got) {
  expect(got.length === vector.length, "a vector of", got.length, "instead of", vector.length);
  expect(got.every((x, i) => Math.abs(x - vector[i]) < 1e-6), "a wrong vector", got.slice(0, 3), vector.slice(0, 3));
}

// until calls work again as long as it throws, as an automation does that
// retries a step; at most five times.
export async function until(work) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (err) {
      if (attempt === 5) throw err;
    }
  }
}
