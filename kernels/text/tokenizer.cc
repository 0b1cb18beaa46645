#include "kernels/text/tokenizer.h"

#include "kernels/text/bpe.h"
#include "kernels/text/tokenizer_file.h"
#include "kernels/text/word_level.h"

namespace primerl {

Result<std::shared_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(TokenizerFile file, read_tokenizer_file(folder));
  return make_tokenizer(std::move(file));
}

Result<std::shared_ptr<Tokenizer>> make_tokenizer(TokenizerFile file) {
  if (file.model_type == "WordLevel") return make_word_level(std::move(file));
  return make_byte_level_bpe(std::move(file));
}

}  // namespace primerl
