// A hostile tokenizer.json, and a hostile text for it: `<json> NUL <text>`.
//
// It must not crash, hang or return ids outside the vocabulary; encoded text must decode.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "graph/base/assert.h"
#include "kernels/text/tokenizer_file.h"

namespace {
constexpr size_t kTextBytesMax = 4096;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  auto file = primerl::parse_tokenizer_file(input.substr(0, end), "tokenizer.json");
  if (!file.ok()) return 0;
  const auto tokenizer = primerl::make_tokenizer(*std::move(file));
  if (!tokenizer.ok()) return 0;
  const std::string_view text =
      end == std::string_view::npos ? "" : input.substr(end + 1, kTextBytesMax);
  for (const auto& ids :
       {(*tokenizer)->encode_text(text), (*tokenizer)->encode_with_specials(text)}) {
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    for (const bool skips_special : {true, false}) {
      const auto decoded = (*tokenizer)->decode(*ids, skips_special);
      CHECK(decoded.ok() || decoded.error().code() == primerl::Code::kExhausted);
    }
  }
  return 0;
}
