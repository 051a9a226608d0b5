// A chat model in a GGUF file, served to whatever speaks OpenAI's protocol, without a compiler:
//
//     node examples/serve.mjs runs/chat.gguf 8080
//     curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Who are you?"}]}'
//
// llama.cpp does the work, through npm's node-llama-cpp (docs/DEPLOY.md). Requests wait for each other.

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
const llama = await getLlama({ gpu: false, build: "never", maxThreads: Number(process.env.THREADS ?? 0) }); // 0: no limit
const model = await llama.loadModel({ modelPath: path });
const context = await model.createContext({ contextSize: Number(size) });

async function answer({ messages, max_tokens = 256, temperature = 0 }, signal) {
  if (!Array.isArray(messages) || !messages.length || messages.some((one) => typeof one?.content !== "string"))
    throw new Error("messages must be a list of at least one {role, content}, each content a string");
  if (!Number.isInteger(max_tokens) || max_tokens < 1)
    throw new Error(`max_tokens must be a whole number of at least 1, not ${max_tokens}`);
  const history = messages.slice(0, -1).map(({ role, content }) =>
    role === "assistant" ? { type: "model", response: [content] } : { type: role, text: content });
  const sequence = context.getSequence();
  const session = new LlamaChatSession({ contextSequence: sequence, systemPrompt: "" });
  try {
    session.setChatHistory(history);
    const { responseText: content, stopReason } = await session.promptWithMeta(
      messages.at(-1).content, { maxTokens: max_tokens, temperature, signal });
    const finish_reason = stopReason === "maxTokens" ? "length" : "stop";
    const choice = { index: 0, message: { role: "assistant", content }, finish_reason };
    return { object: "chat.completion", model: basename(path), choices: [choice] };
  } finally {
    session.dispose({ disposeSequence: true });
  }
}

async function reply(request, response) {
  const send = (code, value) => response.writeHead(code, { "content-type": "application/json" }).end(JSON.stringify(value));
  if (request.method !== "POST" || request.url !== "/v1/chat/completions") return send(404, { error: "not found" });
  const left = new AbortController();
  response.on("close", () => left.abort()); // nobody waits for the rest of it
  try {
    send(200, await answer(await json(request), left.signal));
  } catch (error) {
    send(400, { error: { message: String(error.message) } });
  }
}

let last = Promise.resolve();
const server = createServer((request, response) => { last = last.then(() => reply(request, response)); });
server.listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/v1`));
