// A handler over HTTP, Node only: PORT=8080 node handler.mjs
import { createServer } from "node:http";

const handled = new Set(); // in production: a table, written in the transaction that does the work

function handle(event, body) {
  if (handled.has(event)) return [208]; // duplicate
  let total;
  try {
    total = JSON.parse(body).total;
    if (!Number.isSafeInteger(total)) throw new Error("no total"); // a longer integer would lose digits
  } catch (error) {
    return [400, error.message]; // dead letter, INVALID_SCHEMA
  }
  if (total < 0) return [422, "a negative total", { "Lazaret-Reason": "NEGATIVE_TOTAL" }]; // dead letter
  if (total === 0) return [503, "not priced yet", { "Retry-After": "30" }]; // retry, not before 30 s
  handled.add(event);
  return [204];
}

const server = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const [status, text, headers] = handle(request.headers["ce-id"], Buffer.concat(chunks).toString());
  response.writeHead(status, headers).end(text);
});
server.listen(process.env.PORT ?? 8080, "127.0.0.1", () => console.log("listening on", server.address().port));
