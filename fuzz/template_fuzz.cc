// A hostile chat template, and hostile messages for it: `<template> NUL <JSON messages>`.
//
// It must not crash, hang or grow beyond its limits. The runs cover the rendered text, which is
// UTF-8, and data bytes never count as bytes of the template: two renderings are equal.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "graph/base/assert.h"
#include "kernels/text/chat/template.h"
#include "kernels/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace primerl;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const auto parsed =
      chat::ChatTemplate::parse(input.substr(0, end), "fuzz", {{"bos_token", "<s>"}});
  if (!parsed.ok()) return 0;
  std::vector<ChatMessage> messages = {chat_message("user", "a\"<b>é"),
                                       chat_message("assistant", "c\n")};
  if (end != std::string_view::npos)
    if (const auto json = parse_json(input.substr(end + 1), "messages"); json.ok())
      if (auto read = messages_from_json(*json); read.ok()) messages = std::move(read).value();
  chat::RenderLimits limits;
  limits.steps_max = 20'000;
  limits.output_bytes_max = size_t{1} << 16;
  limits.text_bytes_max = size_t{1} << 20;
  chat::RenderInput render;
  render.messages = messages;
  render.add_generation_prompt = true;
  const auto first = parsed->render(render, limits);
  if (!first.ok()) return 0;
  CHECK(check_utf8(first->text).ok());
  size_t begin = 0;
  for (const chat::Run& run : first->runs) {
    CHECK(run.end > begin && run.end <= first->text.size());
    CHECK(check_utf8(std::string_view(first->text).substr(begin, run.end - begin)).ok());
    if (chat::is_from_message(run.origin)) CHECK(chat::message_of(run.origin) < messages.size());
    begin = run.end;
  }
  CHECK(begin == first->text.size());
  const auto second = parsed->render(render, limits);
  CHECK(second.ok() && second->text == first->text && second->runs == first->runs);
  return 0;
}
