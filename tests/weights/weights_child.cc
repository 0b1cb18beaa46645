// The child of the weights tests: one end of a channel in a separate process.
//   weights_child publish KIND FOLDER FIRST COUNT   then waits for the end of its input
//   weights_child die KIND FOLDER VERSION STEP      killed before that step of the publish
//   weights_child forever KIND FOLDER FIRST         until it is killed
//   weights_child receive KIND FOLDER LAST          until it has seen LAST
//   weights_child hold KIND FOLDER VERSION          retains it until the end of its input
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/conformance/channel_weights.h"
#include "tests/weights/channels.h"

namespace primerl {
namespace {

// Large enough that a kill interrupts it.
constexpr WeightsShape kLarge = {4000, "b.buffer"};

int complain(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return 1;
}

void say(const char* what, int64_t version) {
  std::printf("%s %lld\n", what, static_cast<long long>(version));
  std::fflush(stdout);
}

void wait_for_end_of_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

int publish(WeightChannel& channel, int64_t first, int64_t count) {
  for (int64_t version = first; version < first + count; ++version) {
    const Status published = channel.publish(channel_weights(version, kLarge));
    if (!published.ok()) return complain(published.error().text());
    say("published", version);
  }
  return 0;
}

int receive(WeightChannel& channel, int64_t last) {
  say("receiving", last);
  int64_t num_fetched = 0;
  for (PolicyVersion seen; seen < PolicyVersion(last);) {
    const PolicyVersion newest = channel.newest({});
    if (newest < seen) return complain("the newest version went back");
    if (newest == seen) {
      ::sched_yield();
      continue;
    }
    const auto fetched = channel.fetch({}, newest);
    if (!fetched.ok() && fetched.error().code() == Code::kNotFound) continue;
    if (!fetched.ok()) return complain(fetched.error().text());
    if (!is_whole(**fetched, newest.value, kLarge)) return complain("half a version");
    seen = newest;
    ++num_fetched;
  }
  say("received", num_fetched);
  return 0;
}

int hold(WeightChannel& channel, int64_t version) {
  const auto fetched = channel.fetch({}, PolicyVersion(version));
  if (!fetched.ok()) return complain(fetched.error().text());
  say("holding", version);
  wait_for_end_of_input();
  return is_whole(**fetched, version, kLarge) ? 0 : complain("what is held has changed");
}

int run(const std::string& what, const std::string& kind, const std::string& folder, int64_t number,
        const std::string& more) {
  ChannelSetup setup = channel_setup(folder);
  if (what == "die")
    setup.probe = [&more](std::string_view step) {
      if (step == more) ::raise(SIGKILL);
    };
  const auto channel = open_channel(kind, setup);
  if (what == "die") return publish(*channel, number, 1);
  if (what == "forever") return publish(*channel, number, int64_t{1} << 40);
  if (what == "receive") return receive(*channel, number);
  if (what == "hold") return hold(*channel, number);
  const int code = publish(*channel, number, std::stoll(more));
  if (code == 0) wait_for_end_of_input();
  return code;
}

}  // namespace
}  // namespace primerl

int main(int argc, char** argv) {
  if (argc < 5) return 3;
  return primerl::run(argv[1], argv[2], argv[3], std::stoll(argv[4]), argc > 5 ? argv[5] : "");
}
