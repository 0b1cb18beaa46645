#include "runtime/bin/traced_resources.h"

#include <algorithm>

#include "runtime/bin/recorded_learner.h"

namespace primerl {
namespace {

/// The host that owns a resource; none for those that hosts share.
HostId owner_of(const Plan& plan, int32_t index) {
  for (uint32_t i = 0; i < plan.hosts.size(); ++i) {
    const auto& owned = plan.hosts[i].resources;
    if (std::find(owned.begin(), owned.end(), index) != owned.end()) return HostId(i);
  }
  return HostId::none();
}

bool is_learner(const Plan& plan, int32_t index) {
  return plan.resources[static_cast<size_t>(index)].kind == Learner::kResourceKind;
}

}  // namespace

ResourceFactory recording_factory(ResourceFactory make, Recorder& recorder) {
  return [make = std::move(make), &recorder](const Plan& plan,
                                             int32_t index) -> Result<std::unique_ptr<Resource>> {
    auto made = make(plan, index);
    const HostId owner = owner_of(plan, index);
    if (!made.ok() || !is_learner(plan, index) || owner.is_none()) return made;
    auto* learner = dynamic_cast<Learner*>(made->get());
    CHECK(learner != nullptr, "a resource of kind learner is none");
    (void)made->release();
    return std::unique_ptr<Resource>(make_recording_learner(
        std::unique_ptr<Learner>(learner), [&recorder, owner](std::vector<std::byte> answer) {
          recorder.add_answer(owner, std::move(answer));
        }));
  };
}

std::function<Result<std::unique_ptr<Resource>>(const Plan&, int32_t, RecordedAnswers&)>
replay_factory(ResourceFactory make, bool recorded_learner) {
  return [make = std::move(make), recorded_learner](
             const Plan& plan, int32_t index,
             RecordedAnswers& answers) -> Result<std::unique_ptr<Resource>> {
    const HostId owner = owner_of(plan, index);
    if (!recorded_learner || !is_learner(plan, index) || owner.is_none()) return make(plan, index);
    return std::unique_ptr<Resource>(
        make_recorded_learner([&answers, owner] { return answers.take(owner); }));
  };
}

}  // namespace primerl
