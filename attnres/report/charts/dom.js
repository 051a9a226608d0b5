// Elements and numbers. Texts only ever enter the page as text nodes.

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, attributes, parent, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}
export function html(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
export const number = (value, digits = 3) => {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-4)) return Number(value.toPrecision(digits)).toExponential();
  return String(Number(value.toPrecision(digits)));
};
