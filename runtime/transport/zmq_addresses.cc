#include "runtime/transport/zmq_addresses.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace primerl {
namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kTcp = "tcp://";

/// Every tcp address needs keys. That includes loopback, where any user of the machine can connect,
/// or can listen on a port that a process has left.
Status check_keys(const std::string& address, const ZmqOptions& options) {
  if (options.keys) return check_reach(address, true, !options.allowed.empty());
  RETURN_IF_ERROR(check_reach(address, false, false));
  return error(Code::kInvalid, "'{}' is a tcp address and needs keys", address)
      .note("make_key_pair() draws a pair for a run; ipc needs none");
}

/// Checks that an existing folder is private.
Status check_private(const std::string& folder) {
  struct stat about {};
  if (::lstat(folder.c_str(), &about) != 0)
    return error(errno == ENOENT ? Code::kNotFound : Code::kIo, "looking at '{}': {}", folder,
                 strerror(errno));
  if (!S_ISDIR(about.st_mode))
    return error(Code::kInvalid, "'{}' is no folder to put sockets into", folder);
  if (about.st_uid != ::geteuid() || (about.st_mode & 077) != 0)
    return error(Code::kInvalid, "'{}' has mode {:04o}: others could reach its sockets", folder,
                 about.st_mode & 07777)
        .note(fmt::format("chmod 0700 '{}'", folder));
  return ok();
}

/// Makes the folder, or checks that the existing one is private.
Status private_folder(const std::string& folder) {
  if (folder.empty() || folder.front() != '/')
    return error(Code::kInvalid, "'ipc://{}' needs an absolute folder", folder);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return error(Code::kIo, "making '{}': {}", folder, strerror(errno));
  return check_private(folder);
}

Result<std::string> socket_file(const std::string& folder, const TransportIdentity& identity,
                                std::string_view lane) {
  std::string file =
      fmt::format("{}/p{}.e{}.{}", folder, identity.process, identity.incarnation, lane);
  constexpr size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;
  if (file.size() > kPathMax)
    return error(Code::kInvalid, "'{}' has {} characters, a socket's name may have {}", file,
                 file.size(), kPathMax)
        .note("choose a shorter folder");
  return std::string(kIpc) + file;
}

}  // namespace

bool is_loopback(std::string_view address) {
  if (!address.starts_with(kTcp)) return false;
  std::string_view host = address.substr(kTcp.size());
  if (host.starts_with("[::1]")) return host.size() == 5 || host[5] == ':';
  host = host.substr(0, host.find(':'));
  if (host == "localhost") return true;
  // Four numbers are needed: a name like 127.example.org may be another machine.
  const bool is_numeric = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return is_numeric && host.starts_with("127.") && std::count(host.begin(), host.end(), '.') == 3;
}

Status check_reach(const std::string& address, bool has_keys, bool has_allowed) {
  if (is_loopback(address)) return ok();
  if (!has_keys)
    return error(Code::kInvalid, "'{}' is beyond this machine and needs keys", address)
        .note("make them with `primerl-graph keys new`, or listen on tcp://127.0.0.1");
  if (!has_allowed)
    return error(Code::kInvalid, "'{}' is beyond this machine and needs a list of allowed keys",
                 address)
        .note(
            "add the peers' with `primerl-graph keys allow`: without it any key would be accepted");
  return ok();
}

Status check_identity(const TransportIdentity& identity) {
  for (const std::string* word : {&identity.run, &identity.name})
    if (word->size() > kGreetingWordBytesMax)
      return error(Code::kInvalid, "'{}...' has {} bytes, a greeting has room for {}",
                   word->substr(0, 32), word->size(), kGreetingWordBytesMax);
  return ok();
}

Result<PeerAddress> listen_address(const std::string& listen, const TransportIdentity& identity,
                                   const ZmqOptions& options) {
  if (listen.starts_with(kIpc)) {
    const std::string folder = listen.substr(kIpc.size());
    RETURN_IF_ERROR(private_folder(folder));
    PeerAddress address;
    ASSIGN_OR_RETURN(address.frames, socket_file(folder, identity, "frames"));
    ASSIGN_OR_RETURN(address.bulk, socket_file(folder, identity, "bulk"));
    return address;
  }
  if (!listen.starts_with(kTcp) || listen.size() == kTcp.size())
    return error(Code::kInvalid, "'{}' is nothing to listen on", listen)
        .note("valid: 'ipc:///folder' and 'tcp://address'");
  // An IPv6 address has colons of its own, inside brackets.
  const size_t host_end = listen.find(']', kTcp.size());
  if (listen.find(':', host_end == std::string::npos ? kTcp.size() : host_end) != std::string::npos)
    return error(Code::kInvalid, "'{}' names a port: free ones are taken and exchanged", listen);
  RETURN_IF_ERROR(check_keys(listen, options));
  return PeerAddress{listen + ":*", listen + ":*"};
}

Status check_zmq_peer(const PeerSpec& peer, const ZmqOptions& options) {
  for (const std::string& address : {peer.address.frames, peer.address.bulk}) {
    if (peer.address.empty()) break;
    const bool is_known = address.starts_with(kIpc) || address.starts_with(kTcp);
    if (!is_known)
      return error(Code::kInvalid, "'{}' of '{}' is no address of this transport", address,
                   peer.name)
          .note("valid: 'ipc:///folder/socket' and 'tcp://address:port'");
    if (address.starts_with(kIpc)) {
      // Another user with access to the folder could listen there instead of the peer.
      const std::string file = address.substr(kIpc.size());
      const Status ours = check_private(file.substr(0, file.rfind('/')));
      if (!ours.ok() && ours.error().code() != Code::kNotFound) return ours;
      continue;
    }
    RETURN_IF_ERROR(check_keys(address, options));
    if (!is_public_key(peer.public_key))
      return error(Code::kInvalid, "'{}' is reached by tcp, but its public key is '{}'", peer.name,
                   peer.public_key);
  }
  if (options.allowed.empty()) return ok();
  const auto allowed =
      std::find_if(options.allowed.begin(), options.allowed.end(), [&](const AllowedKey& entry) {
        return entry.process == peer.process && entry.public_key == peer.public_key;
      });
  if (allowed == options.allowed.end())
    return error(Code::kInvalid, "the key of '{}' (process {}) is not in the list of allowed keys",
                 peer.name, peer.process);
  const auto is_allowed = [&](TenantSlot tenant) {
    return std::find(allowed->tenants.begin(), allowed->tenants.end(), tenant) !=
           allowed->tenants.end();
  };
  if (allowed->tenants.empty()) return ok();
  if (peer.tenants.empty() || !std::all_of(peer.tenants.begin(), peer.tenants.end(), is_allowed))
    return error(Code::kInvalid, "'{}' may speak for tenants that its key is not allowed for",
                 peer.name);
  return ok();
}

}  // namespace primerl
