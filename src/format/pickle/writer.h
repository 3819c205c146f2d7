// Writer: appends opcodes of a pickle to a string.
//
// One thread at a time. Nothing is checked: the caller keeps the stack discipline of the pickle machine. Frames are
// never written; readers do not need frames. write_value() (value_writer.h) writes whole values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace cairn::pickle {

// The first protocol with opcodes for sets and for globals whose names come from the stack.
inline constexpr int kFirstModernProtocol = 4;

class Writer {
 public:
  // torch.save and torch.load(weights_only=True) use protocol 2; DCP's metadata is written in protocol 4.
  explicit Writer(int protocol);

  // Each of these pushes one object.
  void none() { op('N'); }
  void boolean(bool value) { op(value ? '\x88' : '\x89'); }
  void integer(std::int64_t value);
  void big_integer(std::string_view twos_complement);  // little endian
  void real(double value);
  void text(std::string_view utf8);  // at most 2^32 - 1 bytes in protocol 2
  // Protocol 2 has no opcode for bytes: writes BINBYTES, which torch does not read in protocol 2.
  void bytes(std::string_view data);
  // Writes the global the first time and refers to the memo afterwards. Protocol 2 ends names by line feeds: `module`
  // and `name` must not contain a line feed.
  void global(std::string_view module, std::string_view name);
  // A short, recurring text (a field name): written the first time, referred to afterwards.
  void shared_text(std::string_view utf8);
  void empty_tuple() { op(')'); }
  void empty_list() { op(']'); }
  void empty_dict() { op('}'); }
  void empty_set();  // protocol 4

  // Each of these pops the objects pushed since mark(), or the number of objects in the function's name or argument,
  // and applies the popped objects to the object below.
  void mark() { op('('); }
  void tuple_since_mark() { op('t'); }
  void tuple(std::size_t count);  // 0 to 3 elements
  void append() { op('a'); }
  void appends() { op('e'); }
  void set_item() { op('s'); }
  void set_items() { op('u'); }
  void add_items() { op('\x90'); }     // protocol 4
  void frozen_set() { op('\x91'); }    // protocol 4
  void reduce() { op('R'); }           // callable, arguments -> result
  void new_instance() { op('\x81'); }  // class, arguments -> instance
  void build() { op('b'); }            // object, state -> object
  void persistent() { op('Q'); }       // id -> the object that the container stores under the id
  void stop() { op('.'); }

  // Stores the top object in the memo and returns the entry's number; reference() pushes the entry's object again.
  std::uint32_t memoize();
  void reference(std::uint32_t memo);

  // Appends opcodes that the caller has prepared.
  void raw(std::string_view opcodes) { out_.append(opcodes); }
  void reserve(std::size_t bytes) { out_.reserve(bytes); }
  std::size_t size() const noexcept { return out_.size(); }
  int protocol() const noexcept { return protocol_; }
  std::string take() && { return std::move(out_); }
  // The opcodes written since size() was `begin`: for a caller that writes the opcodes again with raw().
  std::string_view since(std::size_t begin) const { return std::string_view(out_).substr(begin); }

 private:
  void op(char opcode) { out_.push_back(opcode); }

  std::string out_;
  int protocol_;
  std::uint32_t memo_count_ = 0;
  // By module and name: the number of the memo entry.
  std::map<std::pair<std::string, std::string>, std::uint32_t> globals_;
  std::unordered_map<std::string, std::uint32_t> texts_;
};

}  // namespace cairn::pickle
