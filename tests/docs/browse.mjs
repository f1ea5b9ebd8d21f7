// The built site in a real browser: `node browse.mjs URL FOLDER`; prints what was seen as JSON, pictures go to FOLDER.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, pictures, packages] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${packages}/package.json`));
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const chromium = (await load("@sparticuz/chromium")).default;
const playwright = (await load("playwright-core")).default.chromium;

const browser = await playwright.launch({ executablePath: await chromium.executablePath(), args: chromium.args });
const page = await browser.newPage({ viewport: { width: 1280, height: 1000 } });
page.setDefaultTimeout(20_000);
const seen = { errors: [], elsewhere: [] };
page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
page.on("pageerror", (error) => seen.errors.push(String(error)));
page.on("request", (request) => request.url().startsWith(new URL(url).origin) || /^(data|blob):/.test(request.url()) || seen.elsewhere.push(request.url()));

await page.goto(url, { waitUntil: "networkidle" });
seen.landed = page.url();
seen.title = await page.title();
seen.picture = await page.locator("article img").first().evaluate((image) => image.complete && image.naturalWidth > 0);
seen.copyButtons = await page.locator(".md-code__button, .md-clipboard, button[data-md-type=copy]").count();
await page.screenshot({ path: `${pictures}/front.png`, fullPage: true });

await page.locator(".md-version").first().waitFor();
seen.versions = await page.locator(".md-version__link").allTextContents();

await page.keyboard.press("/");
await page.keyboard.type("cancel", { delay: 60 });
await page.waitForTimeout(3000);
seen.found = await page.evaluate(() => {
  const roots = [document];
  for (const element of document.querySelectorAll("*")) if (element.shadowRoot) roots.push(element.shadowRoot);
  return roots.flatMap((root) => [...root.querySelectorAll("a[href*='h=cancel'], a[href*='?h='], .md-search a, [role=dialog] a, ol a")]).map((link) => link.getAttribute("href")).filter(Boolean).length;
});
seen.searchText = await page.evaluate(() => {
  for (const element of document.querySelectorAll("*")) if (element.shadowRoot) return element.shadowRoot.textContent.slice(0, 400);
  return document.querySelector(".md-search")?.innerText.slice(0, 400) ?? "";
});
await page.screenshot({ path: `${pictures}/search.png` });

await page.emulateMedia({ colorScheme: "dark" });
await page.goto(new URL("lifecycle.html", seen.landed).href, { waitUntil: "networkidle" });
seen.scheme = await page.evaluate(() => document.body.getAttribute("data-md-color-scheme"));
await page.screenshot({ path: `${pictures}/dark.png`, fullPage: true });
await page.goto(new URL("operate.html", seen.landed).href, { waitUntil: "networkidle" });
seen.redirected = page.url();
await browser.close();
console.log(JSON.stringify(seen, null, 2));
