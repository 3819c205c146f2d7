// The part of the CUDA driver's binary interface that Cairn uses: constants, structures and functions of libcuda.so.1.
//
// Declared here from NVIDIA's documentation of the driver API, so that a build needs no CUDA toolkit. The names of
// functions carry the driver's version suffixes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn::device::cuda {

using Status = int;                  // CUresult
using Context = void*;               // CUcontext
using Stream = void*;                // CUstream
using Event = void*;                 // CUevent
using Address = unsigned long long;  // CUdeviceptr

inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;
inline constexpr Status kNotReady = 600;
inline constexpr Status kAlreadyRegistered = 712;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kRegisterPortable = 1;  // for the contexts of all devices
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCaptureNone = 0;

// CUpointer_attribute.
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerOrdinal = 9;
inline constexpr int kPointerRangeStart = 11;
inline constexpr int kPointerRangeBytes = 12;

// CUmemorytype.
inline constexpr unsigned kMemoryHost = 1;
inline constexpr unsigned kMemoryDevice = 2;

// CUDA_MEMCPY2D.
struct Copy2D {
  std::size_t source_x = 0;
  std::size_t source_y = 0;
  unsigned source_type = 0;
  const void* source_host = nullptr;
  Address source_device = 0;
  void* source_array = nullptr;
  std::size_t source_pitch = 0;
  std::size_t target_x = 0;
  std::size_t target_y = 0;
  unsigned target_type = 0;
  void* target_host = nullptr;
  Address target_device = 0;
  void* target_array = nullptr;
  std::size_t target_pitch = 0;
  std::size_t width = 0;
  std::size_t rows = 0;
};
static_assert(sizeof(Copy2D) == 128);

// CUmemLocation and CUmemcpyAttributes.
struct Location {
  int type = 0;
  int id = 0;
};
struct BatchAttributes {
  int source_order = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read in the order of the stream
  Location source;
  Location target;
  unsigned flags = 0;
};

// The functions of the library. The last two are null where the driver lacks them.
struct Functions {
  Status (*cuInit)(unsigned flags);
  Status (*cuGetErrorName)(Status status, const char** name);
  Status (*cuGetErrorString)(Status status, const char** text);
  Status (*cuDeviceGetCount)(int* count);
  Status (*cuDeviceGet)(int* device, int ordinal);
  Status (*cuDevicePrimaryCtxRetain)(Context* context, int device);
  Status (*cuCtxPushCurrent_v2)(Context context);
  Status (*cuCtxPopCurrent_v2)(Context* context);
  Status (*cuThreadExchangeStreamCaptureMode)(int* mode);
  Status (*cuPointerGetAttributes)(unsigned count, int* attributes, void** values, Address address);
  Status (*cuMemHostRegister_v2)(void* memory, std::size_t bytes, unsigned flags);
  Status (*cuMemHostUnregister)(void* memory);
  Status (*cuStreamCreate)(Stream* stream, unsigned flags);
  Status (*cuStreamDestroy_v2)(Stream stream);
  Status (*cuStreamWaitEvent)(Stream stream, Event event, unsigned flags);
  Status (*cuStreamIsCapturing)(Stream stream, int* status);
  Status (*cuEventCreate)(Event* event, unsigned flags);
  Status (*cuEventDestroy_v2)(Event event);
  Status (*cuEventRecord)(Event event, Stream stream);
  Status (*cuEventQuery)(Event event);
  Status (*cuMemcpyDtoHAsync_v2)(void* target, Address source, std::size_t bytes, Stream stream);
  Status (*cuMemcpyHtoDAsync_v2)(Address target, const void* source, std::size_t bytes, Stream stream);
  Status (*cuMemcpy2DAsync_v2)(const Copy2D* copy, Stream stream);
  // CUDA 13.0.
  Status (*cuMemcpyBatchAsync_v2)(Address* targets, Address* sources, std::size_t* bytes, std::size_t count,
                                  BatchAttributes* attributes, std::size_t* attribute_index,
                                  std::size_t attribute_count, Stream stream);
  // CUDA 12.8; `failed` receives the index of the copy that failed.
  Status (*cuMemcpyBatchAsync)(Address* targets, Address* sources, std::size_t* bytes, std::size_t count,
                               BatchAttributes* attributes, std::size_t* attribute_index, std::size_t attribute_count,
                               std::size_t* failed, Stream stream);
};

}  // namespace cairn::device::cuda
