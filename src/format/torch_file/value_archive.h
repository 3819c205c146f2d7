// Value archives: any nest of plain values, NumPy arrays and tensors as a torch.save archive, and back.
//
// Pure and inert: an object of an unknown class becomes an Object with the pickle's description of the object.
#pragma once

#include "core/byte_source.h"

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstdint>
#include <string>

namespace cairn::torch_file {

// An archive that torch.load reads; deterministic. Fails with kUnsupported if `value` contains an Object, and names the
// Object's class.
Result<std::string> encode_value(const Value& value);

// The value of an archive of torch.save or encode_value(). Tensors are returned row-major, whatever strides the archive
// holds. Checks the CRC of every record read. Fails with kCorrupt for damage, with kUnsupported if `archive` is not a
// zip archive, and with kUnsafe for a value that repeats a few bytes until the value exceeds the archive's ByteBudget.
Result<Value> decode_value(const ByteSource& archive);

// Like decode_value(), but a tensor is returned as the call that makes the tensor: an Object of a function of
// torch._utils, whose storage is an Object of the class torch.storage._load_storage with the storage's persistent id as
// the argument. Elements are not read. Fails with kUnsupported also for big-endian archives.
Result<Value> describe_value(const ByteSource& archive);

// Compares the records with the storages that the pickle names: kCorrupt for a storage that the archive lacks, or has
// with another number of bytes; torch.load would fail. Elements are not read. Archives of torch.save, and legacy files;
// any other form passes unchecked.
Result<void> check_storages(const ByteSource& archive);

// The size class of an archive: the smallest multiple of 256, and of 1/8 of the highest power of two in `length`, that
// is at least `length`.
std::uint64_t padded_length(std::uint64_t length);

// Lengthens the archive to `length` bytes by zeros between the last record and the directory. `length` is at least the
// archive's size. Fails with kUnsupported if `archive` is not a zip archive.
Result<std::string> pad_archive(std::string archive, std::uint64_t length);

}  // namespace cairn::torch_file
