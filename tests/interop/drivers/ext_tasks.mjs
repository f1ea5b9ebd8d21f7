// The TypeScript client with ext-tasks, against our server: `node ext_tasks.mjs URL...`.
// Node looks packages up from where a module lies, so the test copies this file beside the installed ones.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";
import {
  CancelTaskResultV2Schema,
  CreateTaskResultV2Schema,
  GetTaskResultV2Schema,
  TaskStatusNotificationV2Schema,
  UpdateTaskResultV2Schema,
} from "@modelcontextprotocol/ext-tasks/core/v2";

const SCENARIO_LIMIT_MS = 20_000;
const PARKED = 30; // seconds of the task that is cancelled: longer than any scenario may last
const PROTOCOL_VERSION = "2026-07-28";
const CLIENT_INFO = { name: "interop", version: "1" };
const TASKS = { extensions: { "io.modelcontextprotocol/tasks": {} } };
const STRICT = {
  "tasks/get": GetTaskResultV2Schema,
  "tasks/update": UpdateTaskResultV2Schema,
  "tasks/cancel": CancelTaskResultV2Schema,
};

// Everything a server sends about tasks is also held against the package's own schemas.
class Wire {
  checked = 0;
  problems = [];

  check(schema, value) {
    const parsed = schema.safeParse(value);
    this.checked += 1;
    if (!parsed.success) this.problems.push({ value, issues: parsed.error.issues });
  }
}

// ext-tasks leaves requests to its host. This one sends them over the client's own transport, under ids of its own.
class Coordinator {
  #transport;
  #pending = new Map();
  #next = 0;
  #wire;
  sent = {};

  constructor(wire) {
    this.#wire = wire;
  }

  attach(transport) {
    this.#transport = transport;
    const deliver = transport.onmessage;
    transport.onmessage = (message, extra) => {
      if (message.method === "notifications/tasks") this.#wire.check(TaskStatusNotificationV2Schema, message);
      const settle = message.method === undefined ? this.#pending.get(message.id) : undefined;
      if (settle === undefined) return deliver(message, extra);
      this.#pending.delete(message.id);
      return settle(message);
    };
  }

  dispatch = async (request, options = {}) => {
    const id = `raw:${(this.#next += 1)}`;
    this.sent[request.method] = (this.sent[request.method] ?? 0) + 1;
    const answered = new Promise((resolve) => this.#pending.set(id, resolve));
    await this.#transport.send({ jsonrpc: "2.0", ...request, id }, { requestSignal: options.signal });
    const message = await answered;
    if (message.error !== undefined) return { kind: "error", error: message.error };
    const created = message.result.resultType === "task";
    const schema = created ? CreateTaskResultV2Schema : STRICT[request.method];
    if (schema !== undefined) this.#wire.check(schema, message.result);
    return { kind: "result", result: message.result };
  };
}

async function withSession(server, capabilities, onInputRequest, use) {
  const client = new Client(CLIENT_INFO, { capabilities, versionNegotiation: { mode: { pin: PROTOCOL_VERSION } } });
  const transport = new StreamableHTTPClientTransport(server.url);
  await client.connect(transport);
  const coordinator = new Coordinator(server.wire);
  coordinator.attach(transport);
  const session = createTaskSessionFromClient(client, {
    endpointId: "interop",
    rawDispatch: coordinator.dispatch,
    v2RequestFraming: { protocolVersion: PROTOCOL_VERSION, clientInfo: CLIENT_INFO, clientCapabilities: capabilities },
    onInputRequest,
    onError: (error) => server.wire.problems.push({ background: String(error) }),
  });
  try {
    return await use(session, client, coordinator);
  } finally {
    await session.close();
    await client.close();
  }
}

async function answer(request) {
  const asked = request.params.requestedSchema.properties;
  return { action: "accept", content: "confirm" in asked ? { confirm: true } : { name: "Ada" } };
}

const shown = (result) => ({ text: result.content[0].text, isError: result.isError ?? false });

function scenarios(server, session) {
  const settle = async (name, params) => {
    const execution = await session.callTool(name, params);
    const { outcome } = await execution.settle();
    return { kind: execution.kind, ...shown(resultFromTaskOutcome(outcome)) };
  };
  return {
    plain: () => settle("greet", { name: "Ada" }),
    task: () => settle("slow_compute", { seconds: 1.2, label: "task" }),
    is_error: () => settle("failing_job"),
    elicitation: () => settle("confirm_delete", { filename: "a.txt" }),
    two_questions: () => settle("multi_input"),
    mrtr: () => settle("test_tool_with_task"),
    failed: async () => {
      const execution = await session.callTool("protocol_error_job");
      const { outcome } = await execution.settle();
      return { status: outcome.status, jsonrpc: { code: outcome.error.code, message: outcome.error.message } };
    },
    status: async () => {
      const execution = await session.callTool("slow_compute", { seconds: 2, label: "status" });
      const messages = [];
      const statuses = [];
      const onEvent = (event) => {
        if (event.type !== "task") return;
        statuses.push(event.task.status);
        messages.push(event.task.statusMessage ?? null);
      };
      const { outcome } = await execution.settle({ onEvent });
      return { statuses, messages, ...shown(resultFromTaskOutcome(outcome)) };
    },
    cancel: async () => {
      const execution = await session.callTool("park", { seconds: PARKED });
      const controller = session.task(execution.handle.taskId);
      const before = (await controller.snapshot()).status;
      await execution.cancel();
      const { outcome } = await execution.settle();
      return { before, after: (await controller.snapshot()).status, outcome: outcome.status };
    },
    resumed: async () => {
      const execution = await session.callTool("slow_compute", { seconds: 0.6, label: "resumed" });
      const reference = execution.serializeReference();
      await execution.detach();
      return withSession(server, TASKS, undefined, async (other) => {
        const again = await other.resumeTask(reference);
        const { outcome } = await again.settle();
        return shown(resultFromTaskOutcome(outcome));
      });
    },
    undeclared_input: () =>
      withSession(server, TASKS, undefined, async (other) => {
        const execution = await other.callTool("confirm_delete", { filename: "x" });
        const { outcome } = await execution.settle();
        return { text: outcome.error.message, isError: true, code: outcome.error.code };
      }),
    unknown_task: async () => ({ status: (await session.task("no-such-task").snapshot()).status }),
    push: () =>
      withSession(server, TASKS, undefined, async (other, client, coordinator) => {
        const execution = await other.callTool("slow_compute", { seconds: 1.2, label: "push" });
        const { taskId } = execution.handle;
        const heard = [];
        const before = client.fallbackNotificationHandler;
        client.fallbackNotificationHandler = async (notification) => {
          if (notification.method === "notifications/tasks") heard.push(notification.params);
          await before?.(notification);
        };
        const subscription = await client.listen({ taskIds: [taskId] });
        const events = [];
        const { outcome } = await execution.settle({ onEvent: (event) => void events.push(event.type) });
        // ext-tasks polls as well and may see the end first.
        for (let i = 0; i < 20 && heard.at(-1)?.status !== "completed"; i += 1) await sleep(50);
        await subscription.close();
        return {
          ...shown(resultFromTaskOutcome(outcome)),
          honored: subscription.honoredFilter ?? null,
          statuses: heard.map((params) => params.status),
          result: heard.at(-1)?.result?.content?.[0]?.text ?? null,
          ids: heard.every((params) => params.taskId === taskId),
          polls: coordinator.sent["tasks/get"] ?? 0,
        };
      }),
  };
}

async function run(scenario) {
  const started = performance.now();
  const limit = AbortSignal.timeout(SCENARIO_LIMIT_MS);
  const late = new Promise((_, reject) => limit.addEventListener("abort", () => reject(limit.reason)));
  const seconds = () => Math.round(performance.now() - started) / 1000;
  try {
    return { ...(await Promise.race([scenario(), late])), seconds: seconds() };
  } catch (error) {
    const cause = error.cause === undefined ? null : String(error.cause);
    return { error: { type: error.name, message: error.message, code: error.code ?? null, cause }, seconds: seconds() };
  }
}

function version(name) {
  const file = new URL(`./node_modules/@modelcontextprotocol/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(file, "utf8")).version;
}

async function drive(url) {
  const server = { url: new URL(url), wire: new Wire() };
  const capabilities = { ...TASKS, elicitation: { form: {} } };
  return withSession(server, capabilities, answer, async (session, client) => {
    const named = Object.entries(scenarios(server, session));
    const outcomes = await Promise.all(named.map(async ([name, scenario]) => [name, await run(scenario)]));
    return { era: client.getProtocolEra(), ...Object.fromEntries(outcomes), wire: server.wire };
  });
}

const outcomes = await Promise.all(process.argv.slice(2).map(drive));
const versions = `${version("client")}/${version("ext-tasks")}`;
console.log(JSON.stringify(outcomes.map((outcome) => ({ version: versions, ...outcome }))));
process.exit(0);
