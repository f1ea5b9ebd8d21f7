// How the clients of the TypeScript SDKs check structured content: `node output_schemas.mjs CASES`, a file of
// {name: {schema, values}}. Reports by SDK and name which of the values it takes, or why it refuses the schema.
import { readFileSync } from "node:fs";
import { AjvJsonSchemaValidator as Newest } from "@modelcontextprotocol/client/validators/ajv";
import { AjvJsonSchemaValidator as Older } from "@modelcontextprotocol/sdk/validation/ajv";

const text = readFileSync(process.argv[2], "utf8");

function checked(provider, { schema, values }) {
  try {
    const validator = provider.getValidator(schema);
    return values.map((value) => validator(value).valid);
  } catch (error) {
    return String(error);
  }
}

function report(provider) {
  // A client has one validator for all tools of a server, and compiles them anew whenever it lists them.
  const once = () => Object.entries(JSON.parse(text)).map(([name, each]) => [name, checked(provider, each)]);
  const first = Object.fromEntries(once());
  const second = Object.fromEntries(once());
  return { first, second };
}

console.log(JSON.stringify({ older: report(new Older()), newest: report(new Newest()) }));
