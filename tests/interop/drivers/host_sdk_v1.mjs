// The client of the TypeScript SDK 1.x, without tasks: `node host_sdk_v1.mjs PLAN`.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { NAME, answerTo, plan, report, shown, visit } from "./host_common.mjs";

let heard = 0;

async function connected(capabilities) {
  const client = new Client(NAME, { capabilities });
  if (capabilities.elicitation !== undefined) client.setRequestHandler(ElicitRequestSchema, answerTo);
  const [command, ...args] = plan.command ?? [];
  const transport =
    plan.url === undefined
      ? new StdioClientTransport({ command, args, cwd: plan.cwd, stderr: "ignore" })
      : new StreamableHTTPClientTransport(new URL(plan.url));
  await client.connect(transport);
  await client.listTools(); // from which it knows what results have to fit
  return async (name, args) => {
    const onprogress = "label" in args ? () => (heard += 1) : undefined;
    return shown(await client.callTool({ name, arguments: args }, undefined, { onprogress }));
  };
}

const outcomes = await visit(await connected({ elicitation: {} }), await connected({}));
report({ ...outcomes, heard });
