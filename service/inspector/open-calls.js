// The calls that wait for a person: all of them are answered together, each once.

import "./argument-form.js";
import { chatPath, post } from "./service.js";
import { asText, asValue, made, tell } from "./shown.js";

class OpenCalls extends HTMLElement {
  /** Show open calls. What was typed stays while the calls stay. */
  show(calls) {
    const asked = calls.filter((call) => call.executor === "client" || call.approval === "asked");
    const key = asked.map((call) => call.call_id).join(" ");
    if (key === this.key) return;
    this.key = key;
    this.replaceChildren();
    if (!asked.length) return;
    this.answers = asked.map((call) => (call.approval === "asked" ? approval(call) : answer(call)));
    const form = made("form", {}, ...this.answers.map((one) => one.field),
      made("button", { textContent: "Submit answers", disabled: !this.mayWrite }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit().catch((error) => tell(this, error));
    });
    this.append(made("h3", { textContent: "Open calls" }), form);
  }

  async submit() {
    await post(chatPath(this.chatId, "tool-results"), { results: this.answers.map((one) => one.result()) });
  }
}

function approval(call) {
  const edited = made("argument-form", { value: call.arguments });
  const name = `decision-${call.call_id}`;
  const option = (words, checked) => {
    const input = made("input", { type: "radio", name, value: words, checked, required: true });
    return [input, made("label", {}, input, ` ${words}`)];
  };
  const [approve, approveLabel] = option("approve", false);
  const [, denyLabel] = option("deny", false);
  const reason = made("input", { type: "text" });
  return {
    field: made("fieldset", { data: { call: call.call_id } },
      made("legend", { textContent: `May ${call.name} run?` }), edited, approveLabel, denyLabel,
      made("label", { className: "line" }, "Reason, if denied ", reason)),
    result() {
      if (!approve.checked) return { call_id: call.call_id, output: { approved: false, ...reason.value && { reason: reason.value } } };
      const given = edited.value;
      const isEdited = JSON.stringify(given) !== JSON.stringify(call.arguments);
      return { call_id: call.call_id, output: { approved: true, ...isEdited && { arguments: given } } };
    },
  };
}

function answer(call) {
  const input = made("textarea", { rows: 3, required: true });
  const failed = made("input", { type: "checkbox" });
  return {
    field: made("fieldset", { data: { call: call.call_id } },
      made("legend", { textContent: `Answer ${call.name}` }),
      made("pre", { textContent: asText(call.arguments) }),
      made("label", { className: "line" }, "Answer, as JSON or text ", input),
      made("label", {}, failed, " it failed")),
    result: () => ({ call_id: call.call_id, output: asValue(input.value), is_error: failed.checked }),
  };
}

customElements.define("open-calls", OpenCalls);
