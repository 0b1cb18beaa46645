// Descriptors that one process gives to another: found by name, and only while they are offered,
// with any other clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/weights/descriptor_server.h"

namespace primerl {
namespace {

using testing::HasSubstr;

/// An unnamed file with the content `text`.
Descriptor file_with(const std::string& text) {
  Descriptor made(::memfd_create("offered", MFD_CLOEXEC));
  EXPECT_EQ(::write(made.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return made;
}

DescriptorServer::Open copies_of(const Descriptor& file) {
  return [number = file.get()]() -> Result<Descriptor> { return Descriptor(::dup(number)); };
}

std::string text_of(const Descriptor& file) {
  std::string text(100, '\0');
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

std::string reason(const DescriptorName& name) {
  const auto received = receive_descriptor(name);
  if (received.ok()) return "received";
  EXPECT_EQ(received.error().code(), Code::kUnavailable);
  return received.error().text();
}

/// A socket connected to the server of `name`.
Descriptor client_of(const DescriptorName& name) {
  Descriptor client(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.address.data(), name.address.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.address.size());
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  return client;
}

TEST(Descriptors, AreTheOnesThatAreOffered) {
  DescriptorServer server;
  const Descriptor one = file_with("one"), other = file_with("other");
  const DescriptorName first = server.offer(copies_of(one)).value();
  const DescriptorName second = server.offer(copies_of(other)).value();
  EXPECT_EQ(text_of(receive_descriptor(second).value()), "other");
  EXPECT_EQ(text_of(receive_descriptor(first).value()), "one");
  EXPECT_EQ(text_of(receive_descriptor(first).value()), "one");
}

TEST(Descriptors, StayOpenInTheProcessThatReceivedThem) {
  auto server = std::make_unique<DescriptorServer>();
  const DescriptorName name = server->offer([] { return file_with("text"); }).value();
  const Descriptor received = receive_descriptor(name).value();
  server = nullptr;
  EXPECT_EQ(text_of(received), "text");
  EXPECT_THAT(reason(name), HasSubstr("cannot be reached"));
}

TEST(Descriptors, AreNotReceivedOnceTheyAreWithdrawn) {
  DescriptorServer server;
  const Descriptor file = file_with("text");
  const DescriptorName kept = server.offer(copies_of(file)).value();
  const DescriptorName withdrawn = server.offer(copies_of(file)).value();
  server.withdraw(withdrawn);
  EXPECT_THAT(reason(withdrawn), HasSubstr("not offered any more"));
  EXPECT_EQ(reason(kept), "received");
  DescriptorName guessed = kept;
  guessed.key.back() = static_cast<char>(guessed.key.back() + 1);
  EXPECT_THAT(reason(guessed), HasSubstr("not offered any more"));
}

TEST(Descriptors, ThatCannotBeMadeSayWhy) {
  DescriptorServer server;
  const DescriptorName name = server
                                  .offer([]() -> Result<Descriptor> {
                                    return error(Code::kInvalid, "the device is on fire");
                                  })
                                  .value();
  EXPECT_THAT(reason(name), HasSubstr("the device is on fire"));
}

TEST(Descriptors, ComeFromAnotherProcessUntilItEnds) {
  int names[2], end[2];
  ASSERT_TRUE(::pipe(names) == 0 && ::pipe(end) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(end[1]);
    DescriptorServer server;
    const Descriptor file = file_with("of the child");
    const DescriptorName name = server.offer(copies_of(file)).value();
    char byte = 0;
    if (::write(names[1], &name, sizeof name) == sizeof name)
      while (::read(end[0], &byte, 1) > 0) {
      }
    ::_exit(0);
  }
  DescriptorName name;
  ASSERT_EQ(::read(names[0], &name, sizeof name), static_cast<ssize_t>(sizeof name));
  EXPECT_EQ(text_of(receive_descriptor(name).value()), "of the child");
  for (const int number : {end[0], end[1], names[0], names[1]}) ::close(number);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_THAT(reason(name), HasSubstr("cannot be reached"));
}

TEST(Descriptors, AreReceivedByAllClientsAtTheSameTime) {
  DescriptorServer server;
  const Descriptor file = file_with("text");
  const DescriptorName name = server.offer(copies_of(file)).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) EXPECT_EQ(text_of(receive_descriptor(name).value()), "text");
    });
  for (auto& thread : threads) thread.join();
}

/// A signal interrupts its thread while it waits.
TEST(Descriptors, AreReceivedInSpiteOfSignals) {
  struct sigaction nothing {};
  struct sigaction before {};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &nothing, &before), 0);
  DescriptorServer server;
  const pthread_t waiting = ::pthread_self();
  const DescriptorName name = server
                                  .offer([waiting] {
                                    for (int i = 0; i < 1000; ++i) {
                                      ::pthread_kill(waiting, SIGUSR1);
                                      std::this_thread::yield();
                                    }
                                    return file_with("text");
                                  })
                                  .value();
  EXPECT_EQ(reason(name), "received");
  EXPECT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
}

/// The server waits for no useless client: one has left, one asked for nothing, one for half a
/// name, one for too much; one more stays silent until the server ends.
TEST(Descriptors, DoNotWaitForClientsThatDoNotAsk) {
  DescriptorServer server;
  const Descriptor file = file_with("text");
  const DescriptorName name = server.offer(copies_of(file)).value();
  client_of(name);
  const std::string much(100, 'x');
  for (const size_t size : {size_t{1}, name.key.size() - 1, much.size()}) {
    const Descriptor client = client_of(name);
    EXPECT_EQ(::send(client.get(), much.data(), size, 0), static_cast<ssize_t>(size));
    EXPECT_EQ(reason(name), "received");
  }
  const Descriptor silent = client_of(name);
  EXPECT_EQ(reason(name), "received");  // after its second
}

}  // namespace
}  // namespace primerl
