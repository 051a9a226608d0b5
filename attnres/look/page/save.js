// What is on the screen as files: one HTML page that needs nothing else, SVG, PNG.

export function download(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The drawing with the colours that it has now.
export function svgText(chart) {
  const copy = chart.cloneNode(true);
  const root = getComputedStyle(document.documentElement);
  const names = ["--ink", "--soft", "--paper", "--panel", "--line", "--focus", "--attention", "--mlp", "--embedding"];
  const values = names.map((name) => `${name}:${root.getPropertyValue(name)}`).join(";");
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
    .filter((rule) => /^(svg|\.depth)\b/.test(rule.selectorText || "")).map((rule) => rule.cssText).join("\n");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const paper = root.getPropertyValue("--paper");
  copy.setAttribute("style", `${values};font-family:system-ui,sans-serif;background:${paper}`);
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  style.textContent = rules;
  copy.prepend(style);
  return new XMLSerializer().serializeToString(copy);
}

export async function png(chart) {
  const address = URL.createObjectURL(new Blob([svgText(chart)], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * chart.clientWidth;
  canvas.height = 2 * chart.clientHeight;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

const inScript = (value) => JSON.stringify(value).replace(/[<>&\u2028\u2029]/g,
  (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

async function digest(text) {
  if (!crypto.subtle) return "'unsafe-inline'"; // an address that is neither local nor https
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return `'sha256-${btoa(String.fromCharCode(...hash))}'`;
}

const part = async (id, path) => document.getElementById(id)?.textContent ?? (await fetch(path)).text();

// One file: the page's own style and script, and the numbers instead of a server.
export async function page(state, session, sides) {
  const [style, script] = await Promise.all([part("style", "page/look.css"), part("script", "page/look.js")]);
  const data = inScript({ state, session, sides: sides.map((side) => side.saved()) });
  const end = "</scr" + "ipt>";
  const policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src " +
    await digest(script);
  return `<!doctype html>
<html lang="en" class="saved">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>attnres look</title>
<style id="style">${style}</style>
</head>
<body>
<main id="look"></main>
<div id="tooltip" role="status" aria-live="polite" hidden></div>
<script type="application/json" id="saved">${data}${end}
<script id="script">${script}${end}
</body>
</html>
`;
}
