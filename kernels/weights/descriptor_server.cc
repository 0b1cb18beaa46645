#include "kernels/weights/descriptor_server.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace primerl {
namespace {

constexpr int kClientsMax = 64;                         // clients in the queue
constexpr int kClientSeconds = 1;                       // limit for a client's request
constexpr int kAnswerSeconds = 10;                      // limit for the answer
constexpr size_t kReasonBytesMax = 1000;                // of the text of an error
constexpr auto kRetry = std::chrono::milliseconds(10);  // while the process has no free descriptor

Error failed(std::string_view what) {
  return error(Code::kUnavailable, "{}: {}", what, std::strerror(errno));
}

/// A signal interrupts a call with a deadline, whatever its handler does; so does the signal that
/// continues a stopped process.
template <class Call>
auto again(const Call& call) {
  for (;;)
    if (const auto done = call(); done >= 0 || errno != EINTR) return done;
}

Result<Descriptor> make_socket(int wait_seconds) {
  Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (made.get() < 0) return failed("a socket");
  const timeval wait{wait_seconds, 0};
  for (const int which : {SO_RCVTIMEO, SO_SNDTIMEO})
    if (::setsockopt(made.get(), SOL_SOCKET, which, &wait, sizeof wait) != 0)
      return failed("a socket's deadline");
  return made;
}

/// Linux assigns an address of a zero byte and five digits if none is given.
constexpr socklen_t kNoAddress = offsetof(sockaddr_un, sun_path);

sockaddr_un address_of(const std::array<char, 6>& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  return address;
}

/// Both ends check it: the abstract namespace is shared by all users.
bool is_of_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

/// One message with space for one descriptor.
class Message {
 public:
  Message(void* bytes, size_t size) : part_{bytes, size} {
    header_.msg_iov = &part_;
    header_.msg_iovlen = 1;
  }
  bool send(int socket, const Descriptor& given) {
    with_control();
    cmsghdr* const control = CMSG_FIRSTHDR(&header_);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = given.get();
    std::memcpy(CMSG_DATA(control), &number, sizeof number);
    return ::sendmsg(socket, &header_, MSG_NOSIGNAL) >= 0;
  }
  /// Returns the number of received bytes; 0 or less: nothing.
  ssize_t receive(int socket) {
    with_control();
    return again([&] { return ::recvmsg(socket, &header_, MSG_CMSG_CLOEXEC); });
  }
  /// The received descriptor; empty: the message had none.
  std::optional<Descriptor> descriptor() {
    const cmsghdr* const control = CMSG_FIRSTHDR(&header_);
    if (control == nullptr || control->cmsg_level != SOL_SOCKET ||
        control->cmsg_type != SCM_RIGHTS || control->cmsg_len != CMSG_LEN(sizeof(int)))
      return std::nullopt;
    int number = -1;
    std::memcpy(&number, CMSG_DATA(control), sizeof number);
    return Descriptor(number);
  }

 private:
  void with_control() {
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
  }

  iovec part_;
  msghdr header_{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
};

}  // namespace

DescriptorServer::~DescriptorServer() {
  is_ending_ = true;
  // wakes the thread that waits for a client
  if (socket_.get() >= 0) ::shutdown(socket_.get(), SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
}

Result<DescriptorName> DescriptorServer::offer(Open open) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) RETURN_IF_ERROR(start());
  DescriptorName name{address_, {}};
  if (::getrandom(name.key.data(), name.key.size(), 0) != static_cast<ssize_t>(name.key.size()))
    return failed("random bytes");
  offers_[name] = std::move(open);
  return name;
}

void DescriptorServer::withdraw(const DescriptorName& name) {
  const std::lock_guard lock(mutex_);
  offers_.erase(name);
}

Status DescriptorServer::start() {
  ASSIGN_OR_RETURN(Descriptor made, make_socket(0));
  sockaddr_un address = address_of({});
  if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), kNoAddress) != 0 ||
      ::listen(made.get(), kClientsMax) != 0)
    return failed("an address of a socket");
  socklen_t size = sizeof address;
  if (::getsockname(made.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      size != kNoAddress + address_.size())
    return error(Code::kUnavailable, "the system gave a socket an address of {} bytes", size);
  std::memcpy(address_.data(), address.sun_path, address_.size());
  socket_ = std::move(made);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& fault) {
    return error(Code::kUnavailable, "a thread: {}", fault.what());
  }
  return ok();
}

void DescriptorServer::serve() const {
  while (!is_ending_) {
    const Descriptor client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.get() >= 0) {
      answer(client.get());
    } else if (errno != EINTR && errno != ECONNABORTED && !is_ending_) {
      std::this_thread::sleep_for(kRetry);
    }
  }
}

void DescriptorServer::answer(int client) const {
  const timeval wait{kClientSeconds, 0};
  if (!is_of_same_user(client) ||
      ::setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) != 0 ||
      ::setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) != 0)
    return;
  DescriptorName asked{address_, {}};
  const auto read = [&] { return ::recv(client, asked.key.data(), asked.key.size(), 0); };
  if (again(read) != static_cast<ssize_t>(asked.key.size())) return;
  const auto found = opened(asked);
  std::string reason = found.ok() ? "here" : found.error().text().substr(0, kReasonBytesMax);
  // A client that has closed its socket needs no answer.
  if (found.ok())
    static_cast<void>(Message(reason.data(), reason.size()).send(client, *found));
  else
    static_cast<void>(::send(client, reason.data(), reason.size(), MSG_NOSIGNAL));
}

Result<Descriptor> DescriptorServer::opened(const DescriptorName& asked) const {
  const std::lock_guard lock(mutex_);
  const auto offer = offers_.find(asked);
  if (offer == offers_.end()) return error(Code::kUnavailable, "it is not offered any more");
  return offer->second();
}

Result<Descriptor> receive_descriptor(const DescriptorName& name) {
  ASSIGN_OR_RETURN(const Descriptor server, make_socket(kAnswerSeconds));
  const sockaddr_un address = address_of(name.address);
  const auto size = static_cast<socklen_t>(kNoAddress + name.address.size());
  const auto connect = [&] {
    return ::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), size);
  };
  if (again(connect) != 0) return failed("the process that offers it cannot be reached");
  if (!is_of_same_user(server.get()))
    return error(Code::kUnavailable, "it is offered by another user's process");
  std::string reason(kReasonBytesMax, '\0');
  Message answer(reason.data(), reason.size());
  if (::send(server.get(), name.key.data(), name.key.size(), MSG_NOSIGNAL) < 0)
    return failed("asking the process that offers it");
  const ssize_t came = answer.receive(server.get());
  if (came < 0) return failed("the process that offers it does not answer");
  if (came == 0) return error(Code::kUnavailable, "the process that offers it has ended");
  if (auto received = answer.descriptor()) return std::move(*received);
  reason.resize(static_cast<size_t>(came));
  return error(Code::kUnavailable, "{}", reason);
}

}  // namespace primerl
