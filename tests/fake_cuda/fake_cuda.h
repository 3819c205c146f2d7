// The controls of the stand-in CUDA driver: device memory, the streams of an imaginary trainer, and failures to order.
//
// The stand-in is stricter than the real driver:
// - Device memory is inaccessible to the host: an access by address ends the program.
// - Queued work happens as late as the rules of streams and events permit, and one operation for each query of an
// event.
// - A copy that touches freed or foreign device memory, or host memory that was unregistered meanwhile, aborts. So do
//   work on a stream under capture, the use of a destroyed handle, and a call in a child made by fork.
// - A copy to host memory that is not registered is done during the call, and counted.
//
// The controls may be called from any thread and need no current context.
#pragma once

#include <cstddef>

extern "C" {

// Forgets orders of failures, broken devices, captures and counts. Queued work and memory stay.
void fake_cuda_reset();

// Memory of a device, filled with the byte 0xa5. Two allocations never have a common address, even after a free.
unsigned long long fake_cuda_allocate(int ordinal, std::size_t bytes);
void fake_cuda_free(unsigned long long address);
// Write or read device memory at once, without regard to queued work.
void fake_cuda_write(unsigned long long address, const void* bytes, std::size_t count);
void fake_cuda_read(unsigned long long address, void* bytes, std::size_t count);

// A stream of the trainer.
void* fake_cuda_make_stream(int ordinal);
// Queues a kernel that writes the bytes, which are copied now.
void fake_cuda_launch_write(void* stream, unsigned long long address, const void* bytes, std::size_t count);
// Queues a kernel that ends when fake_cuda_release() is called.
void fake_cuda_launch_hang(void* stream);
void fake_cuda_release(void* stream);
// Carries out all work of the stream, and first the work that the stream waits for.
void fake_cuda_run(void* stream);

// Captures the stream into a graph, in the global mode. The end returns 1, or 0 if a forbidden call broke the graph.
void fake_cuda_begin_capture(void* stream);
int fake_cuda_end_capture(void* stream);

// The nth call of the function from now on (1: the next) returns `status`, and every later call too if `lasting`.
void fake_cuda_fail(const char* function, int nth, int status, int lasting);
// From now on every call in the device's context returns `status`, and queued work of the device is lost. All
// registrations end.
void fake_cuda_break(int ordinal, int status);

long fake_cuda_calls(const char* function);
long fake_cuda_pageable_copies();
std::size_t fake_cuda_registered_bytes();

}  // extern "C"
