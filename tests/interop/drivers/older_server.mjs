// A server of the TypeScript SDK 1.x with its experimental tasks, for our client to talk to:
// `node older_server.mjs --port N` (stateful Streamable HTTP), or `node older_server.mjs` (stdio).
// Node looks packages up from where a module lies, so the test copies this file beside the installed ones.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { ElicitResultSchema } from "@modelcontextprotocol/sdk/types.js";
import * as z from "zod";

const POLL_INTERVAL_MS = 200;
const TASKS = { list: {}, cancel: {}, requests: { tools: { call: {} } } };
const said = (text) => ({ content: [{ type: "text", text }] });
const QUESTION = { type: "object", properties: { confirm: { type: "boolean" } }, required: ["confirm"] };

// The SDK leaves it to the tool to make the task, to do its work in the background and to keep the result.
function asTask(work) {
  return {
    async createTask(args, extra) {
      const task = await extra.taskStore.createTask({ ttl: extra.taskRequestedTtl, pollInterval: POLL_INTERVAL_MS });
      void run(work, args, task.taskId, extra);
      return { task };
    },
    getTask: (_args, { taskId, taskStore }) => taskStore.getTask(taskId),
    getTaskResult: (_args, { taskId, taskStore }) => taskStore.getTaskResult(taskId),
  };
}

async function run(work, args, taskId, extra) {
  const end = async (status, result) => {
    // A task that was cancelled takes no result.
    await extra.taskStore.storeTaskResult(taskId, status, result).catch(() => undefined);
  };
  try {
    const result = await work(args, { taskId, extra });
    await end(result.isError ? "failed" : "completed", result);
  } catch (error) {
    await end("failed", { ...said(String(error.message ?? error)), isError: true });
  }
}

function build(store) {
  const server = new McpServer(
    { name: "older-typescript", version: "1" },
    { capabilities: { tasks: TASKS }, taskStore: store, taskMessageQueue: new InMemoryTaskMessageQueue() },
  );
  const taskTool = (name, support, inputSchema, work) =>
    server.experimental.tasks.registerToolTask(
      name,
      { inputSchema, execution: { taskSupport: support } },
      asTask(work),
    );

  server.registerTool("greet", { inputSchema: { name: z.string() } }, ({ name }) => said(`Hello, ${name}!`));
  taskTool("slow_compute", "optional", { seconds: z.number(), label: z.string() }, async (args, { taskId, extra }) => {
    for (let step = 0; step < 4; step += 1) {
      await extra.taskStore.updateTaskStatus(taskId, "working", `${args.label}: step ${step}`);
      await sleep((args.seconds * 1000) / 4);
    }
    return said(`${args.label}: done after ${args.seconds} s`);
  });
  taskTool("failing_job", "required", {}, async () => {
    throw new Error("the job failed, as it always does");
  });
  taskTool("park", "optional", { seconds: z.number() }, async ({ seconds }) => {
    await sleep(seconds * 1000, undefined, { ref: false });
    return said("ok");
  });
  taskTool("confirm_delete", "optional", { filename: z.string() }, async ({ filename }, { taskId, extra }) => {
    const params = { mode: "form", message: `Delete ${filename}?`, requestedSchema: QUESTION };
    const answer = await extra.sendRequest({ method: "elicitation/create", params }, ElicitResultSchema, {
      relatedTask: { taskId },
    });
    const accepted = answer.action === "accept" && answer.content?.confirm === true;
    return said(`${accepted ? "deleted" : "kept"} ${filename}`);
  });
  return server;
}

async function body(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return parts.length === 0 ? undefined : JSON.parse(Buffer.concat(parts).toString());
}

function serveHttp(port) {
  const store = new InMemoryTaskStore();
  const sessions = new Map();
  const begin = async () => {
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => void sessions.set(id, transport),
    });
    transport.onclose = () => void sessions.delete(transport.sessionId);
    await build(store).connect(transport);
    return transport;
  };
  const handle = async (request, response) => {
    const named = request.headers["mcp-session-id"];
    const transport = named === undefined ? await begin() : sessions.get(named);
    if (transport === undefined) return response.writeHead(404).end();
    return transport.handleRequest(request, response, request.method === "POST" ? await body(request) : undefined);
  };
  const refuse = (response) => (error) => void response.writeHead(500).end(String(error));
  createServer((request, response) => void handle(request, response).catch(refuse(response))).listen(port, "127.0.0.1");
}

const port = process.argv[2] === "--port" ? Number(process.argv[3]) : undefined;
if (port !== undefined) serveHttp(port);
else await build(new InMemoryTaskStore()).connect(new StdioServerTransport());
