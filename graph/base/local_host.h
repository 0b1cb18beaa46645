/// Which Host headers name this machine: what a server on the loopback answers to.
///
/// Another name may be a web page whose name was pointed to this machine (DNS rebinding). Pure, any
/// thread.
#pragma once

#include <string_view>

namespace primerl {

/// Whether a Host header is localhost, 127.0.0.1 or [::1], with or without a port. The port is not
/// compared, because it differs for a tunnel.
bool names_this_machine(std::string_view host);

}  // namespace primerl
