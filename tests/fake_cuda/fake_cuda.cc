// The functions of libcuda.so.1 that Cairn calls, over FakeDevices, and the controls of fake_cuda.h.
#include "fake_cuda.h"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_abi.h"
#include "fake_device.h"

namespace {

using namespace cairn::fake_cuda;  // NOLINT(google-build-using-namespace)
namespace cuda = cairn::device::cuda;
using cuda::Address;
using cuda::Status;

constexpr Status kNotInitialized = 3;
constexpr Status kInvalidContext = 201;
constexpr Status kInvalidHandle = 400;
constexpr Status kNotRegistered = 713;
constexpr Status kCaptureUnsupported = 900;
constexpr int kModeGlobal = 0;

struct Context {
  int ordinal;
};

struct Failure {
  int nth;
  Status status;
  bool is_lasting;
};

// All of the driver's state. Never destroyed.
struct Driver {
  std::recursive_mutex mutex;
  pid_t process_id = 0;  // 0 before cuInit
  FakeDevices devices;
  std::array<Context, kDeviceCount> contexts{};
  std::array<Status, kDeviceCount> broken{};
  std::map<std::string, Failure> failures;
  std::map<std::string, long> calls;
  long pageable_copies = 0;
  bool capture_is_broken = false;

  Driver() {
    for (int i = 0; i < kDeviceCount; ++i) contexts[static_cast<std::size_t>(i)].ordinal = i;
  }
};

Driver& driver() {
  static Driver& state = *new Driver;
  return state;
}

thread_local std::vector<Context*> current;
thread_local int capture_mode = kModeGlobal;

// The opening of every function: the lock, the rules that hold for all functions, and ordered failures.
class Call {
 public:
  enum class Needs { kNothing, kContext };

  Call(const char* function, Needs needs) : lock_(driver().mutex) {
    Driver& state = driver();
    if (state.process_id != 0 && state.process_id != getpid()) refuse("a call in a child made by fork");
    ++state.calls[function];
    if (state.process_id == 0 && std::strcmp(function, "cuInit") != 0) status = kNotInitialized;
    if (const auto found = state.failures.find(function); found != state.failures.end()) {
      if (--found->second.nth <= 0) {
        status = found->second.status;
        if (!found->second.is_lasting) state.failures.erase(found);
      }
    }
    if (needs == Needs::kNothing || status != cuda::kSuccess) return;
    if (current.empty()) {
      status = kInvalidContext;
      return;
    }
    ordinal = current.back()->ordinal;
    status = state.broken[static_cast<std::size_t>(ordinal)];
  }

  // For functions that a capture in the global mode forbids to every thread in a mode that is not relaxed.
  void expect_no_capture() {
    if (capture_mode == cuda::kCaptureModeRelaxed || status != cuda::kSuccess) return;
    for (const auto& [handle, stream] : driver().devices.streams) {
      if (!stream->is_capturing) continue;
      driver().capture_is_broken = true;
      status = kCaptureUnsupported;
    }
  }

  std::shared_ptr<Stream> stream_of(void* handle) {
    auto& streams = driver().devices.streams;
    // The legacy stream belongs to the current context.
    if (handle == nullptr) handle = &driver().contexts[static_cast<std::size_t>(ordinal)];
    if (auto& stream = streams[handle]; stream == nullptr) {
      if (handle != &driver().contexts[static_cast<std::size_t>(ordinal)]) refuse("a stream that was never created");
      stream = std::make_shared<Stream>(Stream{ordinal, {}, false, false});
    }
    std::shared_ptr<Stream> stream = streams[handle];
    if (stream->is_destroyed) refuse("a use of a destroyed stream");
    if (stream->ordinal != ordinal) status = kInvalidHandle;
    return stream;
  }

  std::shared_ptr<Stream> working_stream_of(void* handle) {
    std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream->is_capturing) refuse("work of Cairn on a stream that is being captured");
    return stream;
  }

  std::shared_ptr<Event> event_of(void* handle) {
    const auto found = driver().devices.events.find(handle);
    if (found == driver().devices.events.end()) refuse("an event that was never created");
    if (found->second->is_destroyed) refuse("a use of a destroyed event");
    return found->second;
  }

  bool failed() const { return status != cuda::kSuccess; }

  Status status = cuda::kSuccess;
  int ordinal = 0;

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
};

// Rows of a copy; consecutive rows are a pitch apart.
struct Rows {
  std::byte* host;
  Address device;
  std::size_t width;
  std::size_t count = 1;
  std::size_t host_pitch = 0;
  std::size_t device_pitch = 0;

  std::size_t host_bytes() const { return host_pitch * (count - 1) + width; }
};

// Queues a copy, or carries the copy out if the host memory is not registered.
Status queue_copy(Stream& stream, const Rows& rows, bool is_to_host) {
  Driver& state = driver();
  if (rows.width == 0 || rows.count == 0) refuse("an empty copy");
  const auto work = [&state, rows, is_to_host] {
    for (std::size_t i = 0; i < rows.count; ++i) {
      std::byte* const contents = state.devices.contents_of(rows.device + i * rows.device_pitch, rows.width);
      std::byte* const host = rows.host + i * rows.host_pitch;
      is_to_host ? std::memcpy(host, contents, rows.width) : std::memcpy(contents, host, rows.width);
    }
  };
  (void)state.devices.contents_of(rows.device, rows.width);
  if (state.devices.is_registered(rows.host, rows.host_bytes())) {
    stream.queue.push_back({[&state, rows, work] {
      if (!state.devices.is_registered(rows.host, rows.host_bytes())) {
        refuse("host memory was unregistered while a copy was pending");
      }
      work();
    }});
    return cuda::kSuccess;
  }
  if (state.devices.touches_registration(rows.host, rows.host_bytes())) return cuda::kInvalidValue;
  ++state.pageable_copies;
  state.devices.drain(stream);
  work();
  return cuda::kSuccess;
}

Status copy_batch(Call& call, Address* targets, Address* sources, std::size_t* bytes, std::size_t count,
                  cuda::BatchAttributes* attributes, void* handle) {
  if (call.failed()) return call.status;
  if (handle == nullptr || attributes->source_order != 1) refuse("a batch in no order of a stream");
  const std::shared_ptr<Stream> stream = call.working_stream_of(handle);
  for (std::size_t i = 0; i < count && !call.failed(); ++i) {
    const bool is_to_host = driver().devices.allocation_at(sources[i]) != nullptr;
    auto* const host = reinterpret_cast<std::byte*>(is_to_host ? targets[i] : sources[i]);
    call.status = queue_copy(*stream, {host, is_to_host ? sources[i] : targets[i], bytes[i]}, is_to_host);
  }
  return call.status;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE Status cuInit(unsigned) {
  Call call("cuInit", Call::Needs::kNothing);
  if (!call.failed()) driver().process_id = getpid();
  return call.status;
}

FAKE Status cuGetErrorName(Status status, const char** name) {
  *name = status == 710 ? "CUDA_ERROR_ASSERT" : status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return cuda::kSuccess;
}

FAKE Status cuGetErrorString(Status, const char** text) {
  *text = "an error of the stand-in driver";
  return cuda::kSuccess;
}

FAKE Status cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", Call::Needs::kNothing);
  *count = kDeviceCount;
  return call.status;
}

FAKE Status cuDeviceGet(int* device, int ordinal) {
  Call call("cuDeviceGet", Call::Needs::kNothing);
  *device = ordinal;
  return call.status;
}

FAKE Status cuDevicePrimaryCtxRetain(cuda::Context* context, int device) {
  Call call("cuDevicePrimaryCtxRetain", Call::Needs::kNothing);
  *context = &driver().contexts.at(static_cast<std::size_t>(device));
  return call.status;
}

FAKE Status cuCtxPushCurrent_v2(cuda::Context context) {
  Call call("cuCtxPushCurrent_v2", Call::Needs::kNothing);
  if (!call.failed()) current.push_back(static_cast<Context*>(context));
  return call.status;
}

FAKE Status cuCtxPopCurrent_v2(cuda::Context* context) {
  Call call("cuCtxPopCurrent_v2", Call::Needs::kNothing);
  if (current.empty()) refuse("a pop of no context");
  *context = current.back();
  current.pop_back();
  return call.status;
}

FAKE Status cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return cuda::kSuccess;
}

FAKE Status cuPointerGetAttributes(unsigned count, int* attributes, void** values, Address address) {
  Call call("cuPointerGetAttributes", Call::Needs::kNothing);
  if (call.failed()) return call.status;
  std::uint64_t begin = 0;
  const Allocation* const found = driver().devices.allocation_at(address, &begin);
  const bool is_device = found != nullptr && !found->is_freed;
  const bool is_host = driver().devices.is_registered(reinterpret_cast<const std::byte*>(address), 1);
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case cuda::kPointerMemoryType:
        *static_cast<unsigned*>(values[i]) = is_device ? cuda::kMemoryDevice : is_host ? cuda::kMemoryHost : 0;
        break;
      case cuda::kPointerOrdinal: *static_cast<int*>(values[i]) = is_device ? found->ordinal : is_host ? 0 : -2; break;
      case cuda::kPointerRangeStart:
        if (is_device) *static_cast<Address*>(values[i]) = begin;
        break;
      case cuda::kPointerRangeBytes:
        if (is_device) *static_cast<std::size_t*>(values[i]) = found->bytes;
        break;
      default: refuse("an attribute of a pointer that Cairn does not use");
    }
  }
  return cuda::kSuccess;
}

FAKE Status cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  Call call("cuMemHostRegister_v2", Call::Needs::kContext);
  call.expect_no_capture();
  if (call.failed()) return call.status;
  if (flags != cuda::kRegisterPortable || bytes == 0) refuse("a registration for one context only, or of nothing");
  auto* const begin = static_cast<std::byte*>(memory);
  if (driver().devices.touches_registration(begin, bytes)) return cuda::kAlreadyRegistered;
  driver().devices.registrations[begin] = bytes;
  return cuda::kSuccess;
}

FAKE Status cuMemHostUnregister(void* memory) {
  Call call("cuMemHostUnregister", Call::Needs::kContext);
  call.expect_no_capture();
  if (call.failed()) return call.status;
  return driver().devices.registrations.erase(static_cast<std::byte*>(memory)) == 1 ? cuda::kSuccess : kNotRegistered;
}

FAKE Status cuStreamCreate(cuda::Stream* stream, unsigned flags) {
  Call call("cuStreamCreate", Call::Needs::kContext);
  if (call.failed()) return call.status;
  if (flags != cuda::kStreamNonBlocking) refuse("a stream that waits for the legacy stream");
  auto made = std::make_shared<Stream>(Stream{call.ordinal, {}, false, false});
  *stream = made.get();
  driver().devices.streams[made.get()] = std::move(made);
  return cuda::kSuccess;
}

FAKE Status cuStreamDestroy_v2(cuda::Stream stream) {
  Call call("cuStreamDestroy_v2", Call::Needs::kContext);
  if (!call.failed()) call.stream_of(stream)->is_destroyed = true;
  return call.status;
}

FAKE Status cuStreamWaitEvent(cuda::Stream stream, cuda::Event event, unsigned) {
  Call call("cuStreamWaitEvent", Call::Needs::kContext);
  if (call.failed()) return call.status;
  const std::shared_ptr<Event> awaited = call.event_of(event);
  call.working_stream_of(stream)->queue.push_back({{}, {}, awaited, awaited->recorded});
  return call.status;
}

FAKE Status cuStreamIsCapturing(cuda::Stream stream, int* status) {
  Call call("cuStreamIsCapturing", Call::Needs::kContext);
  if (!call.failed()) *status = call.stream_of(stream)->is_capturing ? 1 : 0;
  return call.status;
}

FAKE Status cuEventCreate(cuda::Event* event, unsigned flags) {
  Call call("cuEventCreate", Call::Needs::kContext);
  if (call.failed()) return call.status;
  if (flags != cuda::kEventDisableTiming) refuse("an event with a needless time");
  auto made = std::make_shared<Event>();
  made->ordinal = call.ordinal;
  *event = made.get();
  driver().devices.events[made.get()] = std::move(made);
  return cuda::kSuccess;
}

FAKE Status cuEventDestroy_v2(cuda::Event event) {
  Call call("cuEventDestroy_v2", Call::Needs::kContext);
  if (!call.failed()) call.event_of(event)->is_destroyed = true;
  return call.status;
}

FAKE Status cuEventRecord(cuda::Event event, cuda::Stream stream) {
  Call call("cuEventRecord", Call::Needs::kContext);
  if (call.failed()) return call.status;
  const std::shared_ptr<Event> mark = call.event_of(event);
  const std::shared_ptr<Stream> recorded = call.working_stream_of(stream);
  if (mark->ordinal != recorded->ordinal) return kInvalidHandle;
  mark->stream = recorded;
  recorded->queue.push_back({{}, mark, {}, ++mark->recorded});
  return call.status;
}

FAKE Status cuEventQuery(cuda::Event event) {
  Call call("cuEventQuery", Call::Needs::kContext);
  call.expect_no_capture();
  if (call.failed()) return call.status;
  const std::shared_ptr<Event> queried = call.event_of(event);
  if (queried->completed == queried->recorded) return cuda::kSuccess;
  driver().devices.step(*queried->stream);
  return cuda::kNotReady;
}

FAKE Status cuMemcpyDtoHAsync_v2(void* target, Address source, std::size_t bytes, cuda::Stream stream) {
  Call call("cuMemcpyDtoHAsync_v2", Call::Needs::kContext);
  if (call.failed()) return call.status;
  return queue_copy(*call.working_stream_of(stream), {static_cast<std::byte*>(target), source, bytes}, true);
}

FAKE Status cuMemcpyHtoDAsync_v2(Address target, const void* source, std::size_t bytes, cuda::Stream stream) {
  Call call("cuMemcpyHtoDAsync_v2", Call::Needs::kContext);
  if (call.failed()) return call.status;
  auto* const host = static_cast<std::byte*>(const_cast<void*>(source));
  return queue_copy(*call.working_stream_of(stream), {host, target, bytes}, false);
}

FAKE Status cuMemcpy2DAsync_v2(const cuda::Copy2D* copy, cuda::Stream stream) {
  Call call("cuMemcpy2DAsync_v2", Call::Needs::kContext);
  if (call.failed()) return call.status;
  const bool is_to_host = copy->target_type == cuda::kMemoryHost;
  const auto* const host = is_to_host ? copy->target_host : copy->source_host;
  const std::size_t host_pitch = is_to_host ? copy->target_pitch : copy->source_pitch;
  const Address device = is_to_host ? copy->source_device : copy->target_device;
  const std::size_t device_pitch = is_to_host ? copy->source_pitch : copy->target_pitch;
  if (copy->width > host_pitch || copy->width > device_pitch) return cuda::kInvalidValue;
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(host));
  const Rows rows{begin, device, copy->width, copy->rows, host_pitch, device_pitch};
  return queue_copy(*call.working_stream_of(stream), rows, is_to_host);
}

FAKE Status cuMemcpyBatchAsync_v2(Address* targets, Address* sources, std::size_t* bytes, std::size_t count,
                                  cuda::BatchAttributes* attributes, std::size_t*, std::size_t, cuda::Stream stream) {
  Call call("cuMemcpyBatchAsync_v2", Call::Needs::kContext);
  return copy_batch(call, targets, sources, bytes, count, attributes, stream);
}

FAKE void fake_cuda_reset() {
  Driver& state = driver();
  const std::lock_guard lock(state.mutex);
  state.failures.clear();
  state.calls.clear();
  state.broken = {};
  state.pageable_copies = 0;
  state.capture_is_broken = false;
  for (const auto& [handle, stream] : state.devices.streams) stream->is_capturing = false;
}

FAKE unsigned long long fake_cuda_allocate(int ordinal, std::size_t bytes) {
  const std::lock_guard lock(driver().mutex);
  return driver().devices.allocate(ordinal, bytes);
}

FAKE void fake_cuda_free(unsigned long long address) {
  const std::lock_guard lock(driver().mutex);
  driver().devices.free(address);
}

FAKE void fake_cuda_write(unsigned long long address, const void* bytes, std::size_t count) {
  const std::lock_guard lock(driver().mutex);
  std::memcpy(driver().devices.contents_of(address, count), bytes, count);
}

FAKE void fake_cuda_read(unsigned long long address, void* bytes, std::size_t count) {
  const std::lock_guard lock(driver().mutex);
  std::memcpy(bytes, driver().devices.contents_of(address, count), count);
}

FAKE void* fake_cuda_make_stream(int ordinal) {
  const std::lock_guard lock(driver().mutex);
  auto made = std::make_shared<Stream>(Stream{ordinal, {}, false, false});
  void* const handle = made.get();
  driver().devices.streams[handle] = std::move(made);
  return handle;
}

FAKE void fake_cuda_launch_write(void* stream, unsigned long long address, const void* bytes, std::size_t count) {
  const std::lock_guard lock(driver().mutex);
  const auto* const begin = static_cast<const std::byte*>(bytes);
  driver().devices.streams.at(stream)->queue.push_back({[address, copy = std::vector<std::byte>(begin, begin + count)] {
    std::memcpy(driver().devices.contents_of(address, copy.size()), copy.data(), copy.size());
  }});
}

FAKE void fake_cuda_launch_hang(void* stream) {
  const std::lock_guard lock(driver().mutex);
  driver().devices.streams.at(stream)->queue.push_back({{}, {}, {}, 0, true});
}

FAKE void fake_cuda_release(void* stream) {
  const std::lock_guard lock(driver().mutex);
  for (Operation& operation : driver().devices.streams.at(stream)->queue) operation.hangs = false;
}

FAKE void fake_cuda_run(void* stream) {
  const std::lock_guard lock(driver().mutex);
  driver().devices.drain(*driver().devices.streams.at(stream));
}

FAKE void fake_cuda_begin_capture(void* stream) {
  const std::lock_guard lock(driver().mutex);
  driver().devices.streams.at(stream)->is_capturing = true;
  driver().capture_is_broken = false;
}

FAKE int fake_cuda_end_capture(void* stream) {
  const std::lock_guard lock(driver().mutex);
  driver().devices.streams.at(stream)->is_capturing = false;
  return driver().capture_is_broken ? 0 : 1;
}

FAKE void fake_cuda_fail(const char* function, int nth, int status, int lasting) {
  const std::lock_guard lock(driver().mutex);
  driver().failures[function] = {nth, status, lasting != 0};
}

FAKE void fake_cuda_break(int ordinal, int status) {
  const std::lock_guard lock(driver().mutex);
  driver().broken.at(static_cast<std::size_t>(ordinal)) = status;
  driver().devices.lose_work(ordinal);
  driver().devices.registrations.clear();
}

FAKE long fake_cuda_calls(const char* function) {
  const std::lock_guard lock(driver().mutex);
  return driver().calls[function];
}

FAKE long fake_cuda_pageable_copies() {
  const std::lock_guard lock(driver().mutex);
  return driver().pageable_copies;
}

FAKE std::size_t fake_cuda_registered_bytes() {
  const std::lock_guard lock(driver().mutex);
  std::size_t sum = 0;
  for (const auto& [begin, bytes] : driver().devices.registrations) sum += bytes;
  return sum;
}
