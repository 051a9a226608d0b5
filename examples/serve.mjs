// A chat model in a GGUF file, served to whatever speaks OpenAI's protocol, without a compiler:
//
//     node examples/serve.mjs runs/chat.gguf 8080
//     curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Who are you?"}]}'
//
// llama.cpp does the work, through npm's node-llama-cpp (docs/serve.md). Requests wait for each other.

import { existsSync } from "node:fs";
import { createServer } from "node:http";
import { basename } from "node:path";
import { json } from "node:stream/consumers";
import { getLlama, LlamaChatSession } from "node-llama-cpp";

const [path, port = "8080", size = "512"] = process.argv.slice(2);
if (!path || !existsSync(path)) {
  console.error(path ? `${path}: there is no such file` : "usage: node examples/serve.mjs FILE.gguf [PORT] [CONTEXT]");
  process.exit(2);
}
// One thread: more than free cores wait for each other by spinning, and a small model is fastest with one.
const llama = await getLlama({ gpu: false, build: "never", maxThreads: Number(process.env.THREADS ?? 1) });
const model = await llama.loadModel({ modelPath: path });
const context = await model.createContext({ contextSize: Number(size) });
const sequence = context.getSequence(); // one for all: given back, it is free only a little later

// What a request asks for. Throws an Error that says what is wrong with it.
function asked(body) {
  const { messages, max_tokens, max_completion_tokens, temperature, top_p, seed, ...others } = body ?? {};
  const most = max_completion_tokens ?? max_tokens ?? 256, heat = temperature ?? 0; // the first is the newer name
  const roles = ["system", "user", "assistant"], whole = (one) => roles.includes(one?.role) && typeof one.content === "string";
  if (!Array.isArray(messages) || !messages.length || !messages.every(whole))
    throw new Error(`messages must be a list of at least one {role, content}: a role of ${roles.join(", ")}, content a string`);
  if (messages.at(-1).role !== "user") throw new Error("the last of messages must be the user's, which is answered");
  if (!Number.isInteger(most) || most < 1) throw new Error(`max_tokens must be a whole number of at least 1, not ${most}`);
  if (!Number.isFinite(heat) || heat < 0) throw new Error(`temperature must be a number of at least 0, not ${heat}`);
  if (others.stream) throw new Error("there are no streams here; leave out stream");
  if (others.stop?.length || (others.n ?? 1) !== 1) throw new Error("there is one answer, to its end; leave out stop and n");
  for (const [name, given] of Object.entries({ top_p, seed }))
    if (!Number.isFinite(given ?? 0)) throw new Error(`${name} must be a number, not ${given}`);
  return { messages, maxTokens: most, temperature: heat, topP: top_p ?? undefined, seed: seed ?? undefined };
}

function tokensOf(wrapper, history) {
  const { contextText } = wrapper.generateContextState({ chatHistory: [...history, { type: "model", response: [] }] });
  return contextText.tokenize(model.tokenizer).length;
}

async function answer({ messages, maxTokens, ...sampling }, signal) {
  signal.throwIfAborted();
  await sequence.clearHistory();
  const history = messages.slice(0, -1).map(({ role, content }) =>
    role === "assistant" ? { type: "model", response: [content] } : { type: role, text: content });
  const session = new LlamaChatSession({ contextSequence: sequence, systemPrompt: "" }), text = messages.at(-1).content;
  try {
    session.setChatHistory(history);
    const room = context.contextSize - 2 - tokensOf(session.chatWrapper, [...history, { type: "user", text }]);
    // Left to itself llama.cpp's caller cuts what does not fit, and the model answers something else.
    const strategy = () => { throw new Error(`the messages do not fit the context of ${context.contextSize} tokens`); };
    if (room < 1) strategy();
    const { responseText: content, stopReason } = await session.promptWithMeta(
      text, { maxTokens: Math.min(maxTokens, room), ...sampling, signal, contextShift: { strategy } });
    const finish_reason = stopReason === "maxTokens" ? "length" : "stop";
    const choice = { index: 0, message: { role: "assistant", content }, finish_reason };
    return { object: "chat.completion", model: basename(path), choices: [choice] };
  } finally {
    session.dispose({ disposeSequence: false });
  }
}

let last = Promise.resolve();
function inTurn(work) {
  const done = last.then(work);
  last = done.catch(() => {});
  return done;
}

async function reply(request, response) {
  const send = (code, value) => response.writeHead(code, { "content-type": "application/json" }).end(JSON.stringify(value));
  if (request.method !== "POST" || request.url !== "/v1/chat/completions") return send(404, { error: "not found" });
  const left = new AbortController();
  response.on("close", () => left.abort()); // nobody waits for the rest of it
  try {
    const what = asked(await json(request)); // whoever sends slowly holds up nobody
    send(200, await inTurn(() => answer(what, left.signal)));
  } catch (error) {
    send(400, { error: { message: String(error.message) } });
  }
}

const server = createServer(reply);
server.listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/v1`));
