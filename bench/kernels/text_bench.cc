// Text without a model: rendering a conversation in a chat template, and tokenising.
//
// Bound: a conversation of 300 messages has 78 kB of text. Copying it needs 10 us; a template that
// looks at each message once evaluates about 20 nodes for it, 30 ns each: 0.2 ms.
//
//   text_bench --benchmark_filter=render
//   PRIMERL_BENCH_MODEL=FOLDER PRIMERL_BENCH_TEXT=FILE text_bench --benchmark_filter=tokenize
//
// bench/peers/tokenizers_rate.py runs the second beside the Python package `tokenizers`.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>

#include "graph/base/files.h"
#include "kernels/text/tokenizer.h"
#include "tests/text/chat/goldens.h"

namespace primerl::bench {
namespace {

/// 300 messages, some with reasoning.
std::vector<ChatMessage> conversation() {
  std::vector<ChatMessage> messages;
  for (int i = 0; i < 150; ++i) {
    messages.push_back(chat_message(
        "user", fmt::format("Question number {}: what is the weather in the town of X, and why "
                            "does it matter to the people there? Please explain in detail.",
                            i)));
    ChatMessage answer = chat_message(
        "assistant", "The answer is that it rains. " + std::string(300, 'x') + " and so on.");
    if (i % 3 == 0) answer.reasoning = "thinking hard about it for a while";
    messages.push_back(std::move(answer));
  }
  return messages;
}

void render(benchmark::State& state, const chat::ChatTemplate& parsed) {
  static const std::vector<ChatMessage> messages = conversation();
  chat::RenderInput input;
  input.messages = messages;
  input.add_generation_prompt = true;
  for (auto _ : state) {
    const auto rendered = parsed.render(input);
    if (!rendered.ok()) return state.SkipWithError(rendered.error().text().c_str());
    benchmark::DoNotOptimize(rendered->text.data());
  }
}

/// One benchmark for each real template of the tests.
const bool kAreTemplatesRegistered = [] {
  const auto goldens = chat::read_goldens();
  for (const auto& each : goldens.templates) {
    auto parsed = chat::ChatTemplate::parse(each.source, each.name, each.tokens);
    if (!parsed.ok()) continue;
    const auto shared = std::make_shared<chat::ChatTemplate>(std::move(parsed).value());
    benchmark::RegisterBenchmark(("render/" + each.name).c_str(), [shared](
                                                                      benchmark::State& state) {
      render(state, *shared);
    })->Unit(benchmark::kMillisecond);
  }
  return true;
}();

void tokenize(benchmark::State& state) {
  const char* folder = std::getenv("PRIMERL_BENCH_MODEL");
  const char* file = std::getenv("PRIMERL_BENCH_TEXT");
  if (folder == nullptr || file == nullptr)
    return state.SkipWithError("set PRIMERL_BENCH_MODEL and PRIMERL_BENCH_TEXT");
  const auto tokenizer = load_tokenizer(folder);
  const auto text = read_text_file(file);
  if (!tokenizer.ok()) return state.SkipWithError(tokenizer.error().text().c_str());
  if (!text.ok()) return state.SkipWithError(text.error().text().c_str());
  size_t num_tokens = 0;
  for (auto _ : state) {
    // As the peer does: special tokens in the text are found.
    const auto ids = (*tokenizer)->encode_with_specials(*text);
    if (!ids.ok()) return state.SkipWithError(ids.error().text().c_str());
    num_tokens = ids->size();
  }
  state.counters["tokens"] = static_cast<double>(num_tokens);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text->size()));
}
BENCHMARK(tokenize)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace primerl::bench
