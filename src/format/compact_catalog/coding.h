// The numbers of the compact catalog's coding, shared by its writer and its reader (docs/format.md, section 5.1).
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn::compact_catalog {

// An entry begins with these bits; the remaining bits are 0.
inline constexpr std::uint8_t kTensorBit = 1;
inline constexpr std::uint8_t kGradientBit = 2;
inline constexpr unsigned kFormShift = 2;
inline constexpr std::uint8_t kFormMask = 3;
inline constexpr std::uint8_t kGroupsBit = 16;
inline constexpr std::uint8_t kStridesBit = 32;  // in a catalog of kVersionWithStrides

// Of the footer. A catalog without strides has version 1, which every version of Cairn reads.
inline constexpr std::uint32_t kVersionWithoutStrides = 1;
inline constexpr std::uint32_t kVersionWithStrides = 2;

enum class ChunkForm : std::uint8_t {
  kWhole = 0,  // one chunk, which is the whole tensor
  kGrid = 1,   // every cell of a grid, row-major
  kBoxes = 2,  // any boxes, in the order of their offsets
};

// The chunks of a key that take more bytes than kInlineBytesMax are cut into groups of kGroupChunks.
inline constexpr std::size_t kInlineBytesMax = 2048;
inline constexpr std::size_t kGroupChunks = 512;
// Columns of the items' places: files, offsets, lengths.
inline constexpr std::size_t kPlaceColumns = 3;

// A block is full from so many bytes on. A reader reads a block for each of its keys, or one for many neighbours.
inline constexpr std::size_t kBlockBytes = 16 * 1024;
// A page of hashes has about so many keys. There are 2^n pages: page p has the hashes with p in their top n bits.
inline constexpr std::uint64_t kPageKeys = 512;
inline constexpr unsigned kPageBitsMax = 31;

}  // namespace cairn::compact_catalog
