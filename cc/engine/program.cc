// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "engine/operation.h"

namespace jhetcc::engine {
namespace {

using schedule::Schedule;
using schedule::Step;
using schedule::StepKind;
using transport::FrameHeader;
using transport::FrameType;

uint64_t receiveKey(uint32_t peer, uint16_t stream) { return (static_cast<uint64_t>(peer) << 16) | stream; }

}  // namespace

std::shared_ptr<const Program> Program::make(std::shared_ptr<const Schedule> schedule) {
  auto program = std::make_shared<Program>();
  for (size_t i = 0; i < schedule->steps.size(); ++i) {
    const Step& step = schedule->steps[i];
    if (step.kind == StepKind::kRecv) {
      program->receive_steps.emplace_back(receiveKey(step.peer, step.stream), static_cast<int32_t>(i));
    }
    if (schedule::isNative(step.kind)) program->native_steps.push_back(static_cast<int32_t>(i));
  }
  std::sort(program->receive_steps.begin(), program->receive_steps.end());
  program->schedule = std::move(schedule);
  return program;
}

int32_t Program::receiveStep(uint32_t peer, uint16_t stream) const {
  const std::pair<uint64_t, int32_t> wanted{receiveKey(peer, stream), -1};
  auto found = std::lower_bound(receive_steps.begin(), receive_steps.end(), wanted);
  return found != receive_steps.end() && found->first == wanted.first ? found->second : -1;
}

bool Program::hears(uint32_t peer) const {
  auto found = std::lower_bound(receive_steps.begin(), receive_steps.end(), std::pair(receiveKey(peer, 0), -1));
  return found != receive_steps.end() && found->first >> 16 == peer;
}

Parked* ParkedPool::take(const FrameHeader& header, const void* payload) {
  Parked* parked = free_;
  if (parked) {
    free_ = parked->next;
  } else {
    all_.push_back(std::make_unique<Parked>());
    parked = all_.back().get();
  }
  parked->header = header;
  parked->next = nullptr;
  if (header.type != FrameType::kOffer) {
    parked->payload.resize(std::max<size_t>(parked->payload.size(), header.length));
    if (header.length) std::memcpy(parked->payload.data(), payload, header.length);
  }
  return parked;
}

void ParkedPool::put(Parked* parked) {
  parked->next = free_;
  free_ = parked;
}

}  // namespace jhetcc::engine
