/// The Outside of a spec: worker processes, verifiers servers, or both.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "graph/catalog.h"
#include "graph/outside.h"

namespace primerl {

/// `log` receives lines for a person, on any thread; may be null.
std::shared_ptr<Outside> make_outside(const OutsideSpec& spec,
                                      const std::function<void(std::string_view)>& log);

/// The listener for HTTP requests of clients.
ResourceContract http_listener_contract();

}  // namespace primerl
