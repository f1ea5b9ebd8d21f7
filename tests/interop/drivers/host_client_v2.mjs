// The TypeScript client 2.x, without ext-tasks, on the 2026-07-28 wire: `node host_client_v2.mjs PLAN`.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { NAME, answerTo, plan, report, shown, visit } from "./host_common.mjs";

async function connected(capabilities) {
  const client = new Client(NAME, { capabilities, versionNegotiation: { mode: { pin: "2026-07-28" } } });
  if (capabilities.elicitation !== undefined) client.setRequestHandler("elicitation/create", answerTo);
  await client.connect(new StreamableHTTPClientTransport(new URL(plan.url)));
  await client.listTools(); // from which it knows what results have to fit
  return async (name, args) => shown(await client.callTool({ name, arguments: args }));
}

report(await visit(await connected({ elicitation: { form: {} } }), await connected({})));
