#include "runtime/outside/served_keys.h"

#include <fmt/format.h>

#include <utility>

namespace primerl {

ServedKeys::ServedKeys(KeysFile keys, std::string prefix, const std::filesystem::path& run_folder,
                       std::function<void(std::string_view)> log)
    : prefix_(std::move(prefix)),
      log_(std::move(log)),
      keys_(std::move(keys)),
      tokens_(run_folder) {}

void ServedKeys::look(Time now) {
  if (const auto line = keys_.look(now); line && log_) log_(*line);
  if (next_look_ && now < *next_look_) return;
  next_look_ = now + kTokensEvery;
  if (const Status read = tokens_.look(); !read.ok() && log_)
    log_("the tokens that were read before stay: " + read.error().text());
}

std::optional<std::string> ServedKeys::holder_of(std::string_view key, Time now) {
  look(now);
  // Without a file every client may use a listener of `run`; here none may.
  if (const HttpKeys& keys = keys_.keys(); !keys.is_open())
    if (auto tenant = keys.tenant_of(fmt::format("Bearer {}", key))) return tenant;
  if (!key.starts_with(prefix_)) return std::nullopt;
  const auto holder = tokens_.find(key);
  if (!holder || holder->is_operator()) return std::nullopt;
  return holder->name();
}

}  // namespace primerl
