#include "kernels/text/tokenizer.h"

#include "kernels/text/bpe.h"
#include "kernels/text/tokenizer_file.h"
#include "kernels/text/word_level.h"

namespace primerl {
namespace {

const std::vector<int32_t>& no_ids() {
  static const std::vector<int32_t> ids;
  return ids;
}

}  // namespace

const std::vector<int32_t>& Tokenizer::prefix_ids() const { return no_ids(); }
const std::vector<int32_t>& Tokenizer::suffix_ids() const { return no_ids(); }

Result<std::vector<int32_t>> encode_start(const Tokenizer& tokenizer, std::string_view text) {
  ASSIGN_OR_RETURN(auto ids, tokenizer.encode_text(text));
  ids.insert(ids.begin(), tokenizer.prefix_ids().begin(), tokenizer.prefix_ids().end());
  return ids;
}

/// For tokenizers without added tokens, which encode every span alone.
Result<std::vector<int32_t>> Tokenizer::encode_spans(std::string_view text,
                                                     const std::vector<TextSpan>& spans) const {
  std::vector<int32_t> all;
  size_t begin = 0;
  for (const TextSpan& span : spans) {
    const std::string_view part = text.substr(begin, span.end - begin);
    begin = span.end;
    ASSIGN_OR_RETURN(const auto ids,
                     span.is_trusted ? encode_with_specials(part) : encode_text(part));
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

Result<std::shared_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(TokenizerFile file, read_tokenizer_file(folder));
  ASSIGN_OR_RETURN(auto tokenizer, make_tokenizer(std::move(file)));
  tokenizer->set_chat_source(read_chat_source(folder));
  return tokenizer;
}

Result<std::shared_ptr<Tokenizer>> make_tokenizer(TokenizerFile file) {
  if (file.model_type == "WordLevel") return make_word_level(std::move(file));
  return make_bpe(std::move(file));
}

}  // namespace primerl
