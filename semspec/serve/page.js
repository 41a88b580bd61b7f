"use strict";
const $ = (name) => document.getElementById(name);
let asking = null;

const headers = () => {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
};

// Texts of models are set as text alone: nothing in them becomes markup.
const put = (place, text, kind) => {
  const last = place.lastElementChild;
  if (last && last.className === kind && !last.dataset.closed) {
    last.append(text);
    return last;
  }
  const made = document.createElement("span");
  made.className = kind;
  made.append(text);
  place.append(made);
  return made;
};

const show = (section, delta, figures) => {
  const thought = section.querySelector(".reasoning"), said = section.querySelector(".content");
  const ours = delta.semspec ?? {};
  let place = delta.content ? said : thought;
  if (!delta.content && !delta.reasoning_content && said.childElementCount) place = said;
  const text = delta.reasoning_content ?? delta.content ?? "";
  if (text) {
    put(place, text, ours.author ?? "target");
    section.querySelector(place === said ? ".answered" : ".thought").hidden = false;
    figures.first ??= performance.now() - figures.began;
  }
  if (ours.accepted === undefined) return;
  if (!ours.accepted) {
    if (ours.text) put(place, ours.text.trim(), "rejected").dataset.closed = "1";
    figures.rejected += 1;
  } else if (ours.author === "draft") figures.accepted += 1;
  const last = place.lastElementChild;
  if (last) last.dataset.closed = "1";
  if (ours.score !== null && ours.score !== undefined) {
    const mark = put(place, ours.score.toFixed(2), "score");
    mark.dataset.closed = "1";
    mark.title = ours.accepted ? "score of the accepted step" : "score of the rejected step";
  }
};

const tell = (section, figures, usage) => {
  const seconds = (performance.now() - figures.began) / 1000;
  const parts = [`${(usage.completion_tokens / seconds).toFixed(0)} tokens/s`, `${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s`];
  if (figures.first !== undefined) parts.push(`first text after ${(figures.first / 1000).toFixed(2)} s`);
  if (figures.accepted + figures.rejected) parts.push(`${figures.accepted} of ${figures.accepted + figures.rejected} drafted steps accepted`);
  section.querySelector(".figures").textContent = parts.join(" · ");
};

const ask = async (section, off, signal) => {
  section.hidden = false;
  for (const part of section.querySelectorAll(".reasoning, .content, .figures")) part.replaceChildren();
  for (const part of section.querySelectorAll("h3")) part.hidden = true;
  const figures = { began: performance.now(), accepted: 0, rejected: 0 };
  const body = {
    model: $("model").textContent, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
    max_completion_tokens: Number($("limit").value), messages: [{ role: "user", content: $("question").value }],
    semspec: { off, steps: !off },
  };
  const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const events = (pending + value).split("\n\n");
    pending = events.pop();
    for (const one of events) {
      const data = one.replace(/^data: /, "");
      if (data === "[DONE]") continue;
      const told = JSON.parse(data);
      if (told.error) throw new Error(told.error.message);
      if (told.choices.length) show(section, told.choices[0].delta, figures);
      if (told.usage) tell(section, figures, told.usage);
    }
  }
  section.dataset.done = "1";
};

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  asking = new AbortController();
  $("send").disabled = true;
  $("stop").hidden = false;
  $("error").hidden = true;
  for (const name of ["with", "without"]) {
    $(name).hidden = true;
    delete $(name).dataset.done;
  }
  try {
    await ask($("with"), false, asking.signal);
    if ($("alone").checked) await ask($("without"), true, asking.signal);
  } catch (error) {
    if (error.name !== "AbortError") {
      $("error").textContent = error.message;
      $("error").hidden = false;
    }
  }
  $("send").disabled = false;
  $("stop").hidden = true;
  await look();
});
$("stop").addEventListener("click", () => asking?.abort());

const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const look = async () => {
  let text;
  try {
    const response = await fetch("/metrics", { headers: headers() });
    if (!response.ok) return;
    text = await response.text();
  } catch {
    return;
  }
  const value = (name, label = "") => {
    for (const line of text.split("\n")) if (line.startsWith(`${name}{`) && line.includes(label)) return Number(line.split(" ").pop());
    return 0;
  };
  $("running").textContent = value("semspec:running");
  $("waiting").textContent = value("semspec:waiting");
  const draft = value("semspec:generation_tokens_total", 'author="draft"');
  const written = draft + value("semspec:generation_tokens_total", 'author="target"');
  const yes = value("semspec:steps_total", 'verdict="accepted"'), no = value("semspec:steps_total", 'verdict="rejected"');
  $("share").textContent = percent(draft, written);
  $("accepted").textContent = percent(yes, yes + no);
  $("written").textContent = written.toLocaleString("en");
};
look();
setInterval(() => { if (!document.hidden) look(); }, 2000);
