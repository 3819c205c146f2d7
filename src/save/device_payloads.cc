#include "save/device_payloads.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "device/bounced_reads.h"
#include "staging/copy_item.h"

namespace cairn::checkpointer {

Result<std::shared_ptr<DevicePayloads>> DevicePayloads::mark(std::span<const data_file::ItemSource> items,
                                                             std::chrono::milliseconds stall_max) {
  std::vector<staging::CopyItem> on_devices;
  for (const data_file::ItemSource& item : items) {
    if (item.tensor == nullptr || item.tensor->local.device.is_cpu()) continue;
    on_devices.push_back({.tensor = &item.tensor->local, .bytes = {}, .key = item.entry->fqn});
  }
  if (on_devices.empty()) return std::shared_ptr<DevicePayloads>();
  std::shared_ptr<DevicePayloads> payloads(new DevicePayloads(stall_max));
  CAIRN_TRY_ASSIGN(payloads->sources_, staging::DeviceSources::mark(on_devices, payloads->links_, std::nullopt));
  for (const staging::CopyItem& item : on_devices) {
    device::Link* const link = payloads->sources_->lane_of(item.tensor->device.ordinal).link;
    if (std::find(payloads->used_.begin(), payloads->used_.end(), link) == payloads->used_.end()) {
      payloads->used_.push_back(link);
    }
  }
  return payloads;
}

Result<void> DevicePayloads::read(std::span<const Payload> payloads, std::span<const data_file::PayloadPart> parts,
                                  const std::function<bool()>& interrupted) {
  for (device::Link* const link : used_) {
    std::vector<device::BouncedPart> of_device;
    for (const data_file::PayloadPart& part : parts) {
      const Payload& payload = payloads[part.payload];
      if (payload.tensor->device.ordinal != link->ordinal()) continue;
      of_device.push_back({payload.tensor, part.begin, part.out, payload.key});
    }
    device::Stream& stream = sources_->lane_of(link->ordinal()).stream;
    CAIRN_TRY(device::read_by_bounce(*link, stream, of_device, interrupted, stall_max_));
  }
  return {};
}

std::optional<std::string> DevicePayloads::untold_refusal() {
  static std::atomic<bool> is_told{false};
  for (const device::Link* const link : used_) {
    if (std::optional<std::string> told = link->untold_buffer_refusal("saves from", is_told)) return told;
  }
  return std::nullopt;
}

}  // namespace cairn::checkpointer
