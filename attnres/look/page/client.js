// Talks to the server: one stream of messages per question, and whether the server is there at all.

const token = new URLSearchParams(location.search).get("token") || "";

// Thrown for what the server says is wrong; its text is for the user.
export class Failed extends Error {}
// Thrown when nobody answers.
export class Lost extends Error {}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { "X-Attnres-Token": token, ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Lost();
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = `The server answered ${response.status}.`;
  try { message = JSON.parse(text).message || message; } catch { /* no message of ours */ }
  throw new Failed(message);
}

export const askSession = async () => (await request("api/session", {})).json();

// Asks and hands each message of the answer to receive(message) as it comes. Aborting the signal stops the work there.
export async function ask(command, body, receive, signal) {
  const response = await request(`api/${command}`, {
    method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  const take = (line) => {
    if (!line) return;
    const message = JSON.parse(line);
    if (message.kind === "failure") throw new Failed(message.message);
    receive(message);
  };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach(take);
    }
    take(rest);
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Failed) throw error;
    throw new Lost();
  }
}

const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

// The numbers of an Array message.
export const numbers = (array) => new Float32Array(bytesOf(array.float32).buffer);
