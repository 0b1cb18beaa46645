#include "kernels/scripted/scripted_tokenizer.h"

namespace primerl {
namespace {

class ScriptedTokenizer final : public Tokenizer {
 public:
  Result<std::vector<int32_t>> encode_text(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char byte : text)
      ids.push_back(kScriptedFirstToken + static_cast<int32_t>(static_cast<unsigned char>(byte)));
    return ids;
  }
  /// Special tokens have no text form.
  Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const override {
    return encode_text(text);
  }
  /// Sampled ids are rarely valid UTF-8, so each becomes a letter.
  Result<std::string> decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0) return error(Code::kInvalid, "token {} is negative", id);
      text += bytes_of(id);
    }
    return text;
  }
  std::string_view bytes_of(int32_t id) const override {
    constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
    if (id < kScriptedFirstToken) return {};
    return kLetters.substr(static_cast<size_t>(id) % kLetters.size(), 1);
  }
  int32_t vocab_size() const override { return kScriptedVocabSize; }
  const std::vector<int32_t>& eos_ids() const override { return eos_ids_; }
  int32_t pad_id() const override { return 0; }

 private:
  const std::vector<int32_t> eos_ids_{1};
};

}  // namespace

std::unique_ptr<Tokenizer> make_scripted_tokenizer() {
  return std::make_unique<ScriptedTokenizer>();
}

}  // namespace primerl
