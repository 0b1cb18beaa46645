#include "actors/env/rewards/length.h"

#include <algorithm>

#include "actors/env/reward_texts.h"

namespace primerl {
namespace {

class Length final : public Reward {
 public:
  explicit Length(const LengthOptions& options) : options_(options) {}

  Result<double> score(const EnvironmentTask&, const std::vector<std::string>& actions,
                       double) override {
    ASSIGN_OR_RETURN(const std::string* said, last_turn(actions));
    // Every byte of UTF-8 but the first of a character is 10xxxxxx.
    const auto count = std::count_if(said->begin(), said->end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    });
    const auto over = static_cast<double>(count - options_.free);
    return std::clamp(1 - over / static_cast<double>(options_.most - options_.free), 0.0, 1.0);
  }

 private:
  const LengthOptions options_;
};

}  // namespace

OptionSet length_options() {
  return OptionsOf<LengthOptions>()
      .field("free", &LengthOptions::free, count_from(0) | unit("characters"),
             "answers up to this length get the whole reward")
      .field("most", &LengthOptions::most, count_from(1) | unit("characters"),
             "answers of this length or more get 0");
}

Result<std::unique_ptr<Reward>> make_length(const LengthOptions& options) {
  if (options.most <= options.free)
    return error(Code::kInvalid, "'most' {} is not above 'free' {}", options.most, options.free);
  return std::unique_ptr<Reward>(std::make_unique<Length>(options));
}

}  // namespace primerl
