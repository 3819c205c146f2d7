#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace cairn::device {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// From so many copies on, one call of the batch function is faster than a call for each copy.
constexpr std::size_t kBatchCopiesMin = 4;

struct Symbol {
  const char* name;
  void** function;
};
template <typename Function>
Symbol symbol(const char* name, Function& function) {
  return {name, reinterpret_cast<void**>(&function)};
}

// Finds the functions. Returns the name of the first required function that the library lacks; null if none is missing.
const char* find_functions(void* library, cuda::Functions& found) {
  const auto required = std::to_array<Symbol>({
      symbol("cuInit", found.cuInit),
      symbol("cuGetErrorName", found.cuGetErrorName),
      symbol("cuGetErrorString", found.cuGetErrorString),
      symbol("cuDeviceGetCount", found.cuDeviceGetCount),
      symbol("cuDeviceGet", found.cuDeviceGet),
      symbol("cuDevicePrimaryCtxRetain", found.cuDevicePrimaryCtxRetain),
      symbol("cuCtxPushCurrent_v2", found.cuCtxPushCurrent_v2),
      symbol("cuCtxPopCurrent_v2", found.cuCtxPopCurrent_v2),
      symbol("cuThreadExchangeStreamCaptureMode", found.cuThreadExchangeStreamCaptureMode),
      symbol("cuPointerGetAttributes", found.cuPointerGetAttributes),
      symbol("cuMemHostRegister_v2", found.cuMemHostRegister_v2),
      symbol("cuMemHostUnregister", found.cuMemHostUnregister),
      symbol("cuStreamCreate", found.cuStreamCreate),
      symbol("cuStreamDestroy_v2", found.cuStreamDestroy_v2),
      symbol("cuStreamWaitEvent", found.cuStreamWaitEvent),
      symbol("cuStreamIsCapturing", found.cuStreamIsCapturing),
      symbol("cuEventCreate", found.cuEventCreate),
      symbol("cuEventDestroy_v2", found.cuEventDestroy_v2),
      symbol("cuEventRecord", found.cuEventRecord),
      symbol("cuEventQuery", found.cuEventQuery),
      symbol("cuMemcpyDtoHAsync_v2", found.cuMemcpyDtoHAsync_v2),
      symbol("cuMemcpyHtoDAsync_v2", found.cuMemcpyHtoDAsync_v2),
      symbol("cuMemcpy2DAsync_v2", found.cuMemcpy2DAsync_v2),
  });
  for (const Symbol& it : required) {
    *it.function = dlsym(library, it.name);
    if (*it.function == nullptr) return it.name;
  }
  const auto optional = std::to_array<Symbol>({
      symbol("cuMemcpyBatchAsync_v2", found.cuMemcpyBatchAsync_v2),
      symbol("cuMemcpyBatchAsync", found.cuMemcpyBatchAsync),
  });
  for (const Symbol& it : optional) *it.function = dlsym(library, it.name);
  return nullptr;
}

cuda::Stream native(StreamHandle stream) {
  return reinterpret_cast<cuda::Stream>(static_cast<std::uintptr_t>(stream));  // NOLINT(performance-no-int-to-ptr)
}
cuda::Event native(EventHandle event) {
  return reinterpret_cast<cuda::Event>(static_cast<std::uintptr_t>(event));  // NOLINT(performance-no-int-to-ptr)
}
cuda::Address address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

// Step 2.
class CudaDriver::ContextScope {
 public:
  ContextScope(const cuda::Functions& functions, cuda::Context context) : functions_(functions) {
    pushed_ = functions_.cuCtxPushCurrent_v2(context);
    if (pushed_ == cuda::kSuccess) functions_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    if (pushed_ != cuda::kSuccess) return;
    functions_.cuThreadExchangeStreamCaptureMode(&mode_);
    cuda::Context popped = nullptr;
    functions_.cuCtxPopCurrent_v2(&popped);
  }
  cuda::Status status() const noexcept { return pushed_; }

 private:
  const cuda::Functions& functions_;
  cuda::Status pushed_ = cuda::kSuccess;
  int mode_ = cuda::kCaptureModeRelaxed;  // after the first exchange: the thread's own mode
};

CudaDriver::CudaDriver(const cuda::Functions& functions) : functions_(functions), process_id_(getpid()) {}

// Step 1.
Result<CudaDriver*> CudaDriver::load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Error(ErrorCode::kUnavailable, "no CUDA driver on this machine").actual(reason != nullptr ? reason : "");
  }
  cuda::Functions functions{};
  if (const char* const missing = find_functions(library, functions)) {
    return Error(ErrorCode::kUnavailable, std::string("the CUDA driver is too old: no function ") + missing)
        .expected("the driver of CUDA 11.1 or later");
  }
  // Never destroyed: threads may use the driver until the program ends.
  auto* const driver = new CudaDriver(functions);
  CAIRN_TRY(driver->check(functions.cuInit(0), "cuInit", kNoDevice));
  CAIRN_TRY(driver->check(functions.cuDeviceGetCount(&driver->device_count_), "cuDeviceGetCount", kNoDevice));
  driver->device_count_ = std::min<int>(driver->device_count_, kDevicesMax);
  return driver;
}

Result<Driver*> CudaDriver::loaded() {
  static const auto& driver = *new Result<CudaDriver*>(load());  // never destroyed, as the driver
  if (!driver) return driver.error();
  return static_cast<Driver*>(*driver);
}

Error CudaDriver::error_of(cuda::Status status, const char* function, std::int32_t ordinal) const {
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.cuGetErrorName(status, &name);
  functions_.cuGetErrorString(status, &text);
  const std::string place = ordinal == kNoDevice ? "" : " on " + device_name(*this, ordinal);
  return Error(ErrorCode::kUnavailable, "CUDA error " + std::to_string(status) + place + " (" +
                                            (name != nullptr ? name : "unknown") +
                                            "): " + (text != nullptr ? text : "no description") + ", in " + function);
}

Result<void> CudaDriver::check(cuda::Status status, const char* function, std::int32_t ordinal) const {
  if (status == cuda::kSuccess) return {};
  return error_of(status, function, ordinal);
}

Result<cuda::Context> CudaDriver::context_of(std::int32_t ordinal) {
  if (getpid() != process_id_) {  // (3)
    return Error(ErrorCode::kUnavailable, "CUDA can't be used in a child made by fork; start the child with spawn");
  }
  if (ordinal < 0 || ordinal >= device_count_) {
    return Error(ErrorCode::kInvalidArgument, "no device cuda:" + std::to_string(ordinal))
        .expected("a number below " + std::to_string(device_count_));
  }
  std::atomic<cuda::Context>& retained = contexts_[static_cast<std::size_t>(ordinal)];
  if (cuda::Context context = retained.load(std::memory_order_acquire)) return context;
  const std::lock_guard lock(mutex_);
  if (cuda::Context context = retained.load(std::memory_order_relaxed)) return context;
  int device = 0;
  cuda::Context context = nullptr;
  CAIRN_TRY(check(functions_.cuDeviceGet(&device, ordinal), "cuDeviceGet", ordinal));
  CAIRN_TRY(check(functions_.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain", ordinal));
  retained.store(context, std::memory_order_release);
  return context;
}

template <typename Work>
Result<void> CudaDriver::in_context(std::int32_t ordinal, const char* function, Work&& work) {
  CAIRN_TRY_ASSIGN(const cuda::Context context, context_of(ordinal));
  const ContextScope scope(functions_, context);
  CAIRN_TRY(check(scope.status(), "cuCtxPushCurrent", ordinal));
  return check(work(), function, ordinal);
}

// For functions that free. An error does not matter: the context is lost then, and everything of the context with it.
template <typename Work>
void CudaDriver::free_in_context(std::int32_t ordinal, Work&& work) noexcept {
  if (getpid() != process_id_) return;  // (3)
  const cuda::Context context = contexts_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
  const ContextScope scope(functions_, context);
  if (scope.status() == cuda::kSuccess) (void)work();
}

// The attributes need no context: the driver knows all addresses of the process. The context attribute is not asked
// for: the memory of cudaMallocAsync and of expandable segments belongs to no context.
Result<DeviceMemory> CudaDriver::memory_at(const void* address) {
  if (getpid() != process_id_) return context_of(0).error();
  unsigned type = 0;
  int ordinal = -1;
  cuda::Address begin = 0;
  std::size_t bytes = 0;
  std::array<int, 4> attributes{cuda::kPointerMemoryType, cuda::kPointerOrdinal, cuda::kPointerRangeStart,
                                cuda::kPointerRangeBytes};
  std::array<void*, 4> values{&type, &ordinal, &begin, &bytes};
  CAIRN_TRY(check(functions_.cuPointerGetAttributes(static_cast<unsigned>(attributes.size()), attributes.data(),
                                                    values.data(), address_of(address)),
                  "cuPointerGetAttributes", kNoDevice));
  if (type != cuda::kMemoryDevice || ordinal < 0) {
    return Error(ErrorCode::kInvalidArgument, "the address is not in the memory of a CUDA device");
  }
  return DeviceMemory{ordinal, static_cast<std::uintptr_t>(begin), bytes};
}

Result<void> CudaDriver::register_host(std::int32_t ordinal, std::span<std::byte> memory) {
  return in_context(ordinal, "cuMemHostRegister", [&] {
    return functions_.cuMemHostRegister_v2(memory.data(), memory.size(), cuda::kRegisterPortable);
  });
}

void CudaDriver::unregister_host(std::int32_t ordinal, std::byte* begin) noexcept {
  free_in_context(ordinal, [&] { return functions_.cuMemHostUnregister(begin); });
}

Result<StreamHandle> CudaDriver::make_stream(std::int32_t ordinal) {
  cuda::Stream stream = nullptr;
  CAIRN_TRY(in_context(ordinal, "cuStreamCreate",
                       [&] { return functions_.cuStreamCreate(&stream, cuda::kStreamNonBlocking); }));
  return StreamHandle{reinterpret_cast<std::uintptr_t>(stream)};
}

void CudaDriver::destroy_stream(std::int32_t ordinal, StreamHandle stream) noexcept {
  free_in_context(ordinal, [&] { return functions_.cuStreamDestroy_v2(native(stream)); });
}

Result<EventHandle> CudaDriver::make_event(std::int32_t ordinal) {
  cuda::Event event = nullptr;
  CAIRN_TRY(in_context(ordinal, "cuEventCreate",
                       [&] { return functions_.cuEventCreate(&event, cuda::kEventDisableTiming); }));
  return EventHandle{reinterpret_cast<std::uintptr_t>(event)};
}

void CudaDriver::destroy_event(std::int32_t ordinal, EventHandle event) noexcept {
  free_in_context(ordinal, [&] { return functions_.cuEventDestroy_v2(native(event)); });
}

cuda::Status CudaDriver::copy_rows(const Copy& copy, Direction direction, cuda::Stream stream) const {
  if (copy.rows == 1) {
    return direction == Direction::kToHost
               ? functions_.cuMemcpyDtoHAsync_v2(copy.host, copy.device, copy.width, stream)
               : functions_.cuMemcpyHtoDAsync_v2(copy.device, copy.host, copy.width, stream);
  }
  cuda::Copy2D rows;
  rows.width = copy.width;
  rows.rows = copy.rows;
  if (direction == Direction::kToHost) {
    rows.source_type = cuda::kMemoryDevice;
    rows.source_device = copy.device;
    rows.source_pitch = copy.device_pitch;
    rows.target_type = cuda::kMemoryHost;
    rows.target_host = copy.host;
    rows.target_pitch = copy.host_pitch;
  } else {
    rows.source_type = cuda::kMemoryHost;
    rows.source_host = copy.host;
    rows.source_pitch = copy.host_pitch;
    rows.target_type = cuda::kMemoryDevice;
    rows.target_device = copy.device;
    rows.target_pitch = copy.device_pitch;
  }
  return functions_.cuMemcpy2DAsync_v2(&rows, stream);
}

// The copies have one row each.
cuda::Status CudaDriver::copy_batch(std::span<const Copy> copies, Direction direction, cuda::Stream stream) const {
  const std::size_t count = copies.size();
  std::vector<cuda::Address> hosts(count);
  std::vector<cuda::Address> devices(count);
  std::vector<std::size_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    hosts[i] = address_of(copies[i].host);
    devices[i] = copies[i].device;
    bytes[i] = copies[i].width;
  }
  const bool is_to_host = direction == Direction::kToHost;
  cuda::Address* const targets = is_to_host ? hosts.data() : devices.data();
  cuda::Address* const sources = is_to_host ? devices.data() : hosts.data();
  cuda::BatchAttributes attributes;
  std::size_t first = 0;
  if (functions_.cuMemcpyBatchAsync_v2 != nullptr) {
    return functions_.cuMemcpyBatchAsync_v2(targets, sources, bytes.data(), count, &attributes, &first, 1, stream);
  }
  std::size_t failed = 0;
  return functions_.cuMemcpyBatchAsync(targets, sources, bytes.data(), count, &attributes, &first, 1, &failed, stream);
}

Result<void> CudaDriver::copy(std::int32_t ordinal, StreamHandle stream, Direction direction,
                              std::span<const Copy> copies) {
  return in_context(ordinal, "cuMemcpyAsync", [&] {
    for (std::size_t i = 0; i < copies.size();) {
      std::size_t end = i;
      while (end < copies.size() && copies[end].rows == 1) ++end;
      const bool is_batch = copies_in_batches() && end - i >= kBatchCopiesMin;
      if (!is_batch) end = i + 1;
      const cuda::Status status = is_batch ? copy_batch(copies.subspan(i, end - i), direction, native(stream))
                                           : copy_rows(copies[i], direction, native(stream));
      if (status != cuda::kSuccess) return status;
      i = end;
    }
    return cuda::kSuccess;
  });
}

Result<void> CudaDriver::record(std::int32_t ordinal, EventHandle event, StreamHandle stream) {
  return in_context(ordinal, "cuEventRecord", [&] { return functions_.cuEventRecord(native(event), native(stream)); });
}

Result<void> CudaDriver::make_wait(std::int32_t ordinal, StreamHandle stream, EventHandle event) {
  return in_context(ordinal, "cuStreamWaitEvent",
                    [&] { return functions_.cuStreamWaitEvent(native(stream), native(event), 0); });
}

Result<bool> CudaDriver::is_done(std::int32_t ordinal, EventHandle event) {
  bool done = false;
  CAIRN_TRY(in_context(ordinal, "cuEventQuery", [&] {
    const cuda::Status status = functions_.cuEventQuery(native(event));
    done = status == cuda::kSuccess;
    return status == cuda::kNotReady ? cuda::kSuccess : status;
  }));
  return done;
}

Result<bool> CudaDriver::is_capturing(std::int32_t ordinal, StreamHandle stream) {
  int status = cuda::kCaptureNone;
  CAIRN_TRY(in_context(ordinal, "cuStreamIsCapturing",
                       [&] { return functions_.cuStreamIsCapturing(native(stream), &status); }));
  return status != cuda::kCaptureNone;
}

}  // namespace cairn::device
