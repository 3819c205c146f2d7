#include "device/driver.h"

#include "device/cuda_driver.h"

namespace cairn::device {

Result<Driver*> driver_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu: break;
    case DeviceKind::kCuda: return CudaDriver::loaded();
  }
  return Error(ErrorCode::kInvalidArgument, "the memory of the CPU has no driver");
}

}  // namespace cairn::device
