"use strict";
const $ = (name) => document.getElementById(name);
let asking = null;

const headers = () => {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
};

// Model output is inserted as text only, never as markup.
const add = (place, name, kind, text) => {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = text;
  place.append(made);
  return made;
};
const paragraph = (place, kind = "") => add(place, "p", kind, "");

// Blank lines separate paragraphs. Line breaks at the end of a text are kept back, as the next text may begin a new paragraph.
const write = (place, text, kind) => {
  const all = (place.dataset.breaks ?? "") + text, body = all.replace(/\n+$/, "");
  place.dataset.breaks = all.slice(body.length);
  body.split(/\n{2,}/).forEach((piece, at) => {
    const into = at || !place.lastElementChild ? paragraph(place) : place.lastElementChild;
    if (!piece) return;
    const last = into.lastElementChild;
    if (last?.className === kind && !last.dataset.closed) last.append(piece);
    else add(into, "span", kind, piece);
  });
};

const score = (into, value, what) => {
  if (value === null || value === undefined) return;
  add(into, "span", "score", value.toFixed(2)).title = `score of the ${what} step`;
};

// Show a rejected step before the text that replaced it, in a paragraph of its own if that text begins one.
const reject = (place, steps, apart) => {
  for (const step of steps.splice(0)) {
    const [before, after] = step.text.split($("content").dataset.close);
    const into = apart || !place.lastElementChild ? paragraph(place, "gone") : place.lastElementChild;
    if (before.trim()) add(into, "del", "", apart ? before.trim() : before.replace(/\n+$/, ""));
    if (after !== undefined) {
      add(into, "span", "note", "(ends the thinking)");
      if (after.trim()) add(into, "del", "", after.trim());
    }
    score(into, step.score, "rejected");
  }
};

const show = (section, delta, figures) => {
  const thought = section.querySelector(".reasoning"), said = section.querySelector(".content");
  const ours = delta.semspec ?? {};
  const text = delta.reasoning_content ?? delta.content ?? "";
  if (text) {
    const place = delta.content ? said : thought;
    const begins = !place.lastElementChild || /^\n\n/.test((place.dataset.breaks ?? "") + text);
    reject(place, figures.gone, begins);
    if (begins) {
      paragraph(place);
      delete place.dataset.breaks;
    }
    write(place, begins ? text.replace(/^\n+/, "") : text, ours.author ?? "target");
    if (begins) section.querySelector(place === said ? ".answered" : ".thought").hidden = false;
    section.querySelector(".state").textContent = place === said ? "answering…" : "thinking…";
    figures.place = place;
    figures.first ??= performance.now() - figures.began;
  }
  if (ours.accepted === undefined) return;
  const byTokens = ours.drafted !== undefined;
  if (byTokens) {
    figures.kept += ours.tokens;
    figures.drafted += ours.drafted;
  }
  if (!ours.accepted) {
    if (ours.text) figures.gone.push(ours);
    if (!byTokens) figures.rejected += 1;
    return;
  }
  if (ours.author === "draft" && !byTokens) figures.accepted += 1;
  const into = figures.place?.lastElementChild;
  if (!into) return;
  if (into.lastElementChild) into.lastElementChild.dataset.closed = "1";
  score(into, ours.score, "accepted");
};

const tell = (section, figures, usage) => {
  const seconds = (performance.now() - figures.began) / 1000;
  const parts = [`${(usage.completion_tokens / seconds).toFixed(0)} tokens/s`, `${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s`];
  if (figures.first !== undefined) parts.push(`first text after ${(figures.first / 1000).toFixed(2)} s`);
  if (figures.accepted + figures.rejected) parts.push(`${figures.accepted} of ${figures.accepted + figures.rejected} drafted steps accepted`);
  if (figures.drafted) parts.push(`${figures.kept} of ${figures.drafted} drafted tokens accepted`);
  section.querySelector(".figures").textContent = parts.join(" · ");
};

const clear = (section) => {
  section.hidden = true;
  delete section.dataset.done;
  for (const part of section.querySelectorAll(".reasoning, .content, .figures, .state")) {
    part.replaceChildren();
    delete part.dataset.breaks;
  }
  for (const part of section.querySelectorAll("h3")) part.hidden = true;
};

class Refused extends Error {
  constructor(status, told) {
    super((told?.message ?? `The server answered with status ${status}.`).replace(/^max_completion_tokens: /, "Maximum tokens: "));
    this.field = status === 401 ? "key" : told?.param === "max_completion_tokens" ? "limit" : null;
  }
}

const SILENT = { message: "The server does not answer. Is it still running?" };
const reached = (promise) =>
  promise.catch((error) => {
    throw error.name === "AbortError" ? error : new Refused(0, SILENT);
  });

const events = async function* (stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) return;
    const parts = (pending + value).split("\n\n");
    pending = parts.pop();
    for (const one of parts) {
      const data = one.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
};

const ask = async (section, off, signal) => {
  clear(section);
  section.hidden = false;
  const state = section.querySelector(".state");
  state.textContent = "waiting for the first words…";
  const figures = { began: performance.now(), accepted: 0, rejected: 0, kept: 0, drafted: 0, gone: [] };
  const limit = Number($("limit").value);
  const body = {
    model: $("model").textContent, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
    max_completion_tokens: limit, messages: [{ role: "user", content: $("question").value }],
    semspec: { off, steps: !off },
  };
  let ended = "interrupted";
  try {
    const response = await reached(fetch("/v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal }));
    if (!response.ok) throw new Refused(response.status, (await response.json().catch(() => ({}))).error);
    for await (const told of events(response.body)) {
      if (told.error) throw new Refused(500, told.error);
      const [choice] = told.choices;
      if (choice) show(section, choice.delta, figures);
      if (choice?.finish_reason) ended = choice.finish_reason === "length" ? `cut off at ${limit} tokens` : "finished";
      if (told.usage) tell(section, figures, told.usage);
    }
    section.dataset.done = "1";
  } catch (error) {
    if (error.name === "AbortError") ended = "stopped";
    else section.hidden = figures.first === undefined;
    throw error;
  } finally {
    reject(figures.place ?? section.querySelector(".reasoning"), figures.gone, true);
    state.textContent = ended;
  }
};

const complain = (error) => {
  $("error").textContent = error.message;
  $("error").hidden = false;
  if (!error.field) return;
  $(error.field).setAttribute("aria-invalid", "true");
  $(error.field).focus();
};

// The pressed button disappears: move the keyboard focus to the other one.
const turn = (busy) => {
  const [from, to] = busy ? ["send", "stop"] : ["stop", "send"];
  const here = document.activeElement === $(from);
  $("stop").hidden = !busy;
  $("send").disabled = busy;
  if (here) $(to).focus();
};

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if ($("send").disabled) return;
  asking = new AbortController();
  $("error").hidden = true;
  for (const name of ["key", "limit"]) $(name).removeAttribute("aria-invalid");
  for (const name of ["with", "without"]) clear($(name));
  turn(true);
  try {
    await ask($("with"), false, asking.signal);
    if ($("alone").checked) await ask($("without"), true, asking.signal);
    turn(false);
  } catch (error) {
    turn(false);
    if (error.name !== "AbortError") complain(error);
  }
  await look();
});
$("stop").addEventListener("click", () => asking?.abort());
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});

const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const stale = (why) => {
  $("stale").textContent = why;
  $("stale").hidden = !why;
};
const look = async () => {
  let text;
  try {
    const response = await fetch("/metrics", { headers: headers() });
    if (!response.ok) return stale(response.status === 401 ? "These figures need an API key." : `The server returns no figures (status ${response.status}).`);
    text = await response.text();
  } catch {
    return stale("The server does not answer: these figures are out of date.");
  }
  stale("");
  const value = (name, label = "") => {
    for (const line of text.split("\n")) if (line.startsWith(`${name}{`) && line.includes(label)) return Number(line.split(" ").pop());
    return 0;
  };
  $("running").textContent = value("semspec:running");
  $("waiting").textContent = value("semspec:waiting");
  const draft = value("semspec:generation_tokens_total", 'author="draft"');
  const written = draft + value("semspec:generation_tokens_total", 'author="target"');
  $("share").textContent = percent(draft, written);
  $("accepted").textContent = percent(value("vllm:spec_decode_num_accepted_tokens_total"), value("vllm:spec_decode_num_draft_tokens_total"));
  $("written").textContent = written.toLocaleString("en");
};
look();
setInterval(() => { if (!document.hidden) look(); }, 2000);
