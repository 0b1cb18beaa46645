"""Sums of a few numbers, as a taskset of verifiers (0.2 to 0.4).

A rollout has at most two turns. The policy answers with a number at the end of its text, or calls
the tool `add` if `has_tool` of the harness is true. After a wrong answer it may try once more.

Arguments, `args = '{"taskset": {"digits": 2}}'` of the graph: num_tasks, terms, digits, seed, and
`source`: "local", or the name of a data set of the package reasoning-gym, such as "chain_sum".
With the tool: '{"agent": {"harness": {"id": "sums", "has_tool": true}}}', and a renderer that knows
calls, `renderer = '{"name": "qwen3"}'`. SmolLM2 has no token for a call, and its chat template shows
no tools. It calls the tool after three examples ("has_examples": true) with `client = "eval"` and
`chat = { parser = "hermes" }` of the tenant.
"""

import json
import random
import re

import httpx
import verifiers.v1 as vf

SYSTEM = "Add the numbers. Call the tool add, or end your answer with the sum."
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def call_text(name, arguments):
    """A call in the form that the parser of calls reads."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def with_calls_as_text(message):
    """For a template that shows no calls: the message as it was sampled."""
    text = message.get("content") or ""
    for call in message.get("tool_calls") or []:
        function = call["function"]
        text += call_text(function["name"], json.loads(function["arguments"]))
    return {"role": "assistant", "content": text}


def example_calls():
    messages = []
    for a, b in ((1, 2), (15, 4), (30, 22)):
        messages += [
            {"role": "user", "content": f"{a} + {b} = "},
            {"role": "assistant", "content": call_text("add", {"a": a, "b": b})},
            {"role": "tool", "tool_call_id": "example", "content": str(a + b)},
            {"role": "assistant", "content": f"The sum is {a + b}"},
        ]
    return messages


def last_number(text):
    found = re.findall(r"-?\d+", text or "")
    return int(found[-1]) if found else None


class SumsConfig(vf.TasksetConfig):
    num_tasks: int = 100
    terms: int = 2
    digits: int = 1
    seed: int = 0
    source: str = "local"


class SumData(vf.TaskData):
    answer: int


class Sum(vf.Task[SumData, vf.State]):
    @vf.reward
    async def correct(self, trace) -> float:
        return 1.0 if trace.info.get("answer") == self.data.answer else 0.0


class Sums(vf.Taskset[Sum, SumsConfig]):
    def rows(self):
        config = self.config
        if config.source != "local":
            import reasoning_gym

            data = reasoning_gym.create_dataset(
                config.source, size=config.num_tasks, seed=config.seed
            )
            for row in data:
                yield row["question"], int(row["answer"])
            return
        numbers = random.Random(config.seed)
        for _ in range(config.num_tasks):
            terms = [numbers.randrange(10**config.digits) for _ in range(config.terms)]
            yield " + ".join(map(str, terms)) + " = ", sum(terms)

    def load(self):
        return [
            Sum(
                SumData(idx=index, name=f"sum-{index}", prompt=prompt, answer=answer),
                self.config.task,
            )
            for index, (prompt, answer) in enumerate(self.rows())
        ]


class SumsHarnessConfig(vf.HarnessConfig):
    has_tool: bool = False  # only where the calls of the model are known
    has_examples: bool = False  # of calls, for a chat template that shows no tools


class SumsHarness(vf.Harness[SumsHarnessConfig]):
    """It asks the model in this process, so a rollout starts no program."""

    SUPPORTS_RESUME = False
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data=None, **others
    ):
        data = data or trace.task.data  # version 0.2 gives none
        messages = [
            {"role": "system", "content": SYSTEM},
            *(example_calls() if self.config.has_examples else []),
            {"role": "user", "content": data.prompt},
        ]
        async with httpx.AsyncClient(timeout=None) as client:
            for _ in range(2):
                body = {"model": ctx.model, "messages": messages}
                if self.config.has_tool:
                    body["tools"] = [ADD]
                reply = await client.post(
                    f"{endpoint}/chat/completions",
                    json=body,
                    headers={"Authorization": f"Bearer {secret}"},
                )
                if reply.status_code != 200:
                    # The trace has the reason: a prompt that is too long, or a fault of the model.
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=reply.text)
                message = reply.json()["choices"][0]["message"]
                trace.info["answer"] = last_number(message.get("content"))
                if trace.info["answer"] == data.answer:
                    break
                said = with_calls_as_text(message) if self.config.has_examples else message
                messages += [said, *self.next_messages(message)]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    def next_messages(self, message):
        calls = message.get("tool_calls")
        if not calls:
            return [{"role": "user", "content": "That is wrong. Try once more."}]
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": tool_result(call)}
            for call in calls
        ]


def tool_result(call):
    try:
        arguments = json.loads(call["function"]["arguments"])
        return str(int(arguments["a"]) + int(arguments["b"]))
    except (KeyError, TypeError, ValueError) as fault:
        return f"error: {fault!r}"


__all__ = ["Sums", "SumsHarness"]
