// Value archives: any nest of plain values, NumPy arrays and tensors as a torch.save archive, and back.
//
// Pure and inert: a class that we do not know comes back as an Object that says what the pickle said.
#pragma once

#include "core/byte_source.h"

#include <cairn/result.h>
#include <cairn/value.h>

#include <cstdint>
#include <string>

namespace cairn::torch_file {

// An archive that torch.load reads; deterministic. Fails with kUnsupported if there is an Object in `value`, naming its
// class.
Result<std::string> encode_value(const Value& value);

// The value that torch.save, or encode_value, was given. Tensors come back row-major, whatever their strides were. The
// CRCs of the records that are read are checked. Fails with kCorrupt for damage, and with kUnsupported for what is no
// zip archive and for values that repeat so few bytes so often that they would fill the memory (ByteBudget).
Result<Value> decode_value(const ByteSource& archive);

// The same with tensors as the calls that make them: an Object of a function of torch._utils, whose storage is an
// Object of the class torch.storage._load_storage with the storage's persistent id as its argument. Elements are not
// read. Fails with kUnsupported for big-endian archives also.
Result<Value> describe_value(const ByteSource& archive);

// The size class of an archive: the smallest length that is at least `length` and a multiple of 1/8 of the highest
// power of two in it, and of 256.
std::uint64_t padded_length(std::uint64_t length);

// Makes the archive `length` bytes long, which is not less than what it has, with zeros between its last record and its
// directory. Fails with kUnsupported if it is no zip archive.
Result<std::string> pad_archive(std::string archive, std::uint64_t length);

}  // namespace cairn::torch_file
