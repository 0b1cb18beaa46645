#include "actors/env/environments/find_in_pages.h"

#include <string_view>

#include "actors/env/environments/letters.h"

namespace primerl {
namespace {

constexpr size_t kKeyLetters = 4;
constexpr uint64_t kNumbers = 10'000;

char letter_of(uint64_t byte) { return static_cast<char>('a' + (byte * 26 >> 8)); }

/// Words of seven letters: one random number makes a word and the space after it.
std::string random_letters(size_t size, RandomStream random) {
  std::string text;
  text.reserve(size + 8);
  while (text.size() < size) {
    uint64_t drawn = random.next();
    for (int i = 0; i < 7; ++i, drawn >>= 8) text.push_back(letter_of(drawn & 0xff));
    text.push_back(' ');
  }
  text.resize(size);
  return text;
}

class FindInPages final : public Environment {
 public:
  explicit FindInPages(const FindInPagesOptions& options) : options_(options) {}

  Result<EnvironmentTask> task(uint64_t, RandomStream random) override {
    std::string key;
    for (size_t i = 0; i < kKeyLetters; ++i) key.push_back(letter_of(random.below(256)));
    return EnvironmentTask{"f:" + key + ">", fmt::format("a:{}", random.below(kNumbers))};
  }

  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    if (actions.empty()) return error(Code::kInvalid, "a step needs an action");
    if (key_of(task).size() != kKeyLetters || task.answer.size() < 3)
      return error(Code::kInvalid, "task '{}' is not a task of this environment", task.prompt);
    const bool is_answer = actions.back().starts_with("a:");
    if (is_answer || actions.size() > static_cast<size_t>(options_.pages))
      return EnvironmentStep{"", reward_of(actions.back(), task.answer), true};
    return EnvironmentStep{page(task, actions.size() - 1), 0, false};
  }

  std::vector<std::string> demonstration(const EnvironmentTask& task) const override {
    std::vector<std::string> actions(page_with_answer(task) + 1, "n");
    actions.push_back(task.answer);
    return actions;
  }

 private:
  static double reward_of(const std::string& said, const std::string& answer) {
    return said == answer ? 1 : kNearReward * equal_share(said, answer);
  }
  /// `kqzt` for the prompt `f:kqzt>`. The length is not kKeyLetters if the prompt has another form.
  static std::string_view key_of(const EnvironmentTask& task) {
    const std::string_view prompt = task.prompt;
    return prompt.size() < 3 ? "" : prompt.substr(2, prompt.size() - 3);
  }
  static uint64_t seed_of(const EnvironmentTask& task) {
    return mix(stable_hash(task.prompt), stable_hash(task.answer));
  }
  size_t page_with_answer(const EnvironmentTask& task) const {
    return RandomStream(seed_of(task)).below(static_cast<uint64_t>(options_.pages));
  }

  std::string page(const EnvironmentTask& task, size_t number) const {
    const uint64_t seed = mix(seed_of(task), number + 1);
    std::string text = random_letters(static_cast<size_t>(options_.page_bytes), RandomStream(seed));
    text.back() = '>';
    if (number != page_with_answer(task)) return text;
    const std::string said =
        fmt::format(" {}={} ", key_of(task), std::string_view(task.answer).substr(2));
    const uint64_t places = text.size() - said.size() - 1;
    return text.replace(RandomStream(mix(seed, 0)).below(places + 1), said.size(), said);
  }

  const FindInPagesOptions options_;
};

Status validate(const FindInPagesOptions& options) {
  if (options.pages < 1 || options.pages > kPagesMax)
    return error(Code::kInvalid, "'pages' {} is not in [1, {}]", options.pages, kPagesMax);
  if (options.page_bytes < kPageBytesMin || options.page_bytes > kPageBytesMax)
    return error(Code::kInvalid, "'page_bytes' {} is not in [{}, {}]", options.page_bytes,
                 kPageBytesMin, kPageBytesMax);
  return ok();
}

}  // namespace

Result<std::unique_ptr<Environment>> make_find_in_pages(const FindInPagesOptions& options) {
  RETURN_IF_ERROR(validate(options));
  return std::unique_ptr<Environment>(std::make_unique<FindInPages>(options));
}

}  // namespace primerl
