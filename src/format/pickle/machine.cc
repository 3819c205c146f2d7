#include "format/pickle/machine.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/little_endian.h"
#include "format/pickle/decimal_integer.h"
#include "format/pickle/long_integer.h"
#include "format/pickle/opcode.h"
#include "format/pickle/opcode_scan.h"
#include "format/pickle/recogniser.h"
#include "format/pickle/registers.h"

namespace cairn::pickle {
namespace {

constexpr std::size_t kArenaWordsMax = std::size_t{1} << 32;  // an offset has 32 bits
constexpr std::size_t kTupleCountMax = std::size_t{1} << 26;  // a count has 27 bits
constexpr const char* kTooLarge = "pickle: needs more memory than allowed";
constexpr const char* kTooFew = "pickle: stack underflow";

}  // namespace

class Machine {
 public:
  Machine(std::span<const std::byte> input, const Limits& limits, FoldHandler* fold_handler)
      : limits_(limits), fold_handler_(fold_handler), recogniser_(graph_, scan_, memo_, fold_handler) {
    graph_.input_ = input;
  }

  Result<Graph> run();

 private:
  using Tag = Node::Tag;

  // Each returns whether to go on. Functions that take Registers are inlined; the other functions work on `saved_`.
  bool execute();
  bool execute_rare();
  bool execute_stack(Registers& r, std::uint8_t opcode);
  template <typename Slow>
  bool spilled(Registers& r, Slow slow);

  // Records the failure and returns false.
  [[gnu::noinline, gnu::cold]] bool fail(const std::byte* at, const char* message,
                                         ErrorCode code = ErrorCode::kCorrupt);
  Error error() const {
    return Error(failure_code_, failure_).offset(static_cast<std::uint64_t>(failed_at_ - graph_.input_.data()));
  }

  // The stack.
  bool push(Registers& r, Node node);
  [[gnu::noinline]] bool grow_stack();
  [[gnu::always_inline]] void mark(Registers& r) {
    fences_.push_back(static_cast<std::size_t>(r.fence - stack_.data()));
    r.fence = r.top;
  }
  bool close_mark(Registers& r);

  // The arena.
  std::uint64_t allocate(Registers& r, std::size_t words);
  [[gnu::noinline]] bool grow_arena(std::size_t words) {
    const std::size_t most = std::min(kArenaWordsMax, limits_.memory_bytes_max / sizeof(Node));
    return graph_.arena_.grow(arena_end_ + words, most) || fail(saved_.at, kTooLarge, ErrorCode::kUnsupported);
  }
  Node& arena(std::uint64_t offset) { return graph_.arena_[offset]; }

  // The memo.
  bool get(Registers& r, std::size_t memo);
  void put(std::size_t memo, Node node);
  bool memoize(Registers& r);

  // Opcodes, and runs of opcodes that Python's pickler writes frequently.
  bool tuple(Registers& r, std::size_t count, Tag tag);
  bool container(Registers& r, Tag tag);
  bool extend(Registers& r, Tag target, std::size_t count);
  bool extend_since_mark(Registers& r, Tag target);
  bool call(Registers& r, Tag tag);
  bool build(Registers& r);
  bool new_with_dict(Registers& r);
  bool shape(Registers& r);
  bool global(Registers& r, std::string_view module, std::string_view name);
  bool global_line(Registers& r);
  bool stack_global(Registers& r);
  std::string_view line(Registers& r) const;
  bool push_integer(Registers& r, std::span<const std::byte> number, std::uint64_t place);
  bool long_integer(Registers& r, std::size_t length_bytes);
  bool decimal(Registers& r, bool is_long);
  [[gnu::always_inline]] bool next_is(const Registers& r, const Idiom& idiom) const {
    return r.at < idioms_end_ && idiom.is_at(r.at);
  }

  Graph graph_;
  Limits limits_;
  FoldHandler* fold_handler_;
  std::size_t arena_end_ = 1;  // 0 means "none" in links
  std::size_t pinned_ = 0;     // only instances at this word of the arena or behind may be folded

  NodeBuffer stack_;
  Node* stack_end_ = nullptr;
  std::vector<std::size_t> fences_;

  OpcodeScan scan_;  // empty until run() makes the scan
  ZeroedArray<Node> memo_;
  std::size_t memoized_ = 0;
  bool numbered_memo_ = false;

  Recogniser recogniser_;

  Registers saved_{};
  const std::byte* idioms_end_ = nullptr;  // from here on, eight bytes cannot be loaded at once

  const char* failure_ = nullptr;
  ErrorCode failure_code_ = ErrorCode::kCorrupt;
  const std::byte* failed_at_ = nullptr;
};

bool Machine::fail(const std::byte* at, const char* message, ErrorCode code) {
  failure_ = message;
  failure_code_ = code;
  failed_at_ = at - 1;
  return false;
}

// Runs a function that is not inlined, without taking the address of `r`.
template <typename Slow>
[[gnu::always_inline]] inline bool Machine::spilled(Registers& r, Slow slow) {
  saved_.at = r.at;
  saved_.top = r.top;
  saved_.fence = r.fence;
  const bool ok = slow();
  r.at = saved_.at;
  r.top = saved_.top;
  r.fence = saved_.fence;
  return ok;
}

[[gnu::always_inline]] inline bool Machine::push(Registers& r, Node node) {
  if (r.top == stack_end_ && !spilled(r, [this] { return grow_stack(); })) return false;
  *r.top++ = node;
  return true;
}

bool Machine::grow_stack() {
  const std::ptrdiff_t used = saved_.top - stack_.data();
  const std::ptrdiff_t fence = saved_.fence - stack_.data();
  if (!stack_.grow(0, limits_.memory_bytes_max / sizeof(Node))) {
    return fail(saved_.at, kTooLarge, ErrorCode::kUnsupported);
  }
  stack_end_ = stack_.data() + stack_.capacity();
  saved_.top = stack_.data() + used;
  saved_.fence = stack_.data() + fence;
  return true;
}

// The objects since the last mark now belong to the previous mark. Before the call, depth() counts the objects.
[[gnu::always_inline]] inline bool Machine::close_mark(Registers& r) {
  if (fences_.empty()) return fail(r.at, "pickle: no MARK on the stack");
  r.fence = stack_.data() + fences_.back();
  fences_.pop_back();
  return true;
}

// The place of `words` fresh words, or 0 after a failure.
[[gnu::always_inline]] inline std::uint64_t Machine::allocate(Registers& r, std::size_t words) {
  if (words > graph_.arena_.capacity() - arena_end_ && !spilled(r, [this, words] { return grow_arena(words); }))
    return 0;
  const std::uint64_t place = arena_end_;
  arena_end_ += words;
  return place;
}

[[gnu::always_inline]] inline bool Machine::get(Registers& r, std::size_t memo) {
  const Node node = memo_[memo];  // the scan has sized the memo for every entry that is read
  if (!node.is_set()) return fail(r.at, "pickle: memo index not set");
  // The pickle may now add elements to the container, and a fold must not discard the elements.
  if (node.may_change()) pinned_ = arena_end_;
  return push(r, node);
}

[[gnu::always_inline]] inline void Machine::put(std::size_t memo, Node node) {
  if (!scan_.is_used(memo)) return;
  memo_[memo] = node;
  if (node.in_arena()) pinned_ = std::max(pinned_, std::size_t{node.offset()} + 1);
}

[[gnu::always_inline]] inline bool Machine::memoize(Registers& r) {
  if (r.depth() == 0) return fail(r.at, kTooFew);
  if (numbered_memo_) return fail(r.at, "pickle: both MEMOIZE and PUT opcodes", ErrorCode::kUnsupported);
  put(memoized_++, r.top[-1]);
  return true;
}

[[gnu::always_inline]] inline bool Machine::tuple(Registers& r, std::size_t count, Tag tag) {
  if (r.depth() < count) return fail(r.at, kTooFew);
  if (count == 0) return push(r, Node::at_place(tag, 0));
  r.top -= count;
  if (count == 1 && tag == Tag::kTuple && r.top->tag() == Tag::kTuple) {
    return push(r, r.top->as(Tag::kTupleInTuple));
  }
  if (count > kTupleCountMax) return fail(r.at, "pickle: tuple with too many elements", ErrorCode::kUnsupported);
  const std::uint64_t place = allocate(r, count);
  if (place == 0) return false;
  Node* to = &arena(place);
  for (std::size_t i = 0; i < count; ++i) to[i] = r.top[i];
  return push(r, Node::at_place(tag, place, count));
}

// A list, set or dict is two words: the places of its first and last segment, and the count of elements. A segment is a
// word with the place of the next segment and the segment's count, then the elements.
[[gnu::always_inline]] inline bool Machine::container(Registers& r, Tag tag) {
  const std::uint64_t place = allocate(r, 2);
  if (place == 0) return false;
  arena(place) = Node(0);
  arena(place + 1) = Node(0);
  return push(r, Node::at_place(tag, place));
}

// Moves the top `count` objects into the container below. If a call or an instance lies below, moves the objects into
// the items of the call or instance.
[[gnu::always_inline]] inline bool Machine::extend(Registers& r, Tag target, std::size_t count) {
  if (r.depth() < count + 1) return fail(r.at, kTooFew);
  if (target == Tag::kDict && count % 2 != 0) return fail(r.at, "pickle: dict key without a value");
  const Node* const elements = r.top - count;
  Node into = elements[-1];
  if (into.tag() == Tag::kCall || into.tag() == Tag::kInstance) [[unlikely]] {
    const std::uint64_t owner = into.offset();
    if (!arena(owner + 3).is_set()) {
      const std::uint64_t place = allocate(r, 2);
      if (place == 0) return false;
      arena(place) = Node(0);
      arena(place + 1) = Node(0);
      arena(owner + 3) = Node::at_place(target, place);
    }
    into = arena(owner + 3);
  }
  r.top -= count;
  if (into.tag() != target) return fail(r.at, "pickle: elements added to an object of a wrong type");
  if (count == 0) return true;
  const std::uint64_t place = allocate(r, count + 1);
  if (place == 0) return false;
  Node* segment = &arena(place);
  segment[0] = Node(count);
  for (std::size_t i = 0; i < count; ++i) segment[i + 1] = elements[i];
  Node* header = &arena(into.offset());
  const std::uint64_t links = header[0].bits();
  if (links == 0) {
    header[0] = Node((place << 32) | place);
  } else {
    arena(links >> 32) = Node((place << 32) | (arena(links >> 32).bits() & 0xFFFFFFFFu));
    header[0] = Node((place << 32) | (links & 0xFFFFFFFFu));
  }
  header[1] = Node(header[1].bits() + count);
  return true;
}

[[gnu::always_inline]] inline bool Machine::extend_since_mark(Registers& r, Tag target) {
  const std::size_t count = r.depth();
  return close_mark(r) && extend(r, target, count);
}

[[gnu::always_inline]] inline bool Machine::call(Registers& r, Tag tag) {
  if (r.depth() < 2) return fail(r.at, kTooFew);
  const Node arguments = r.top[-1];
  const Node callable = r.top[-2];
  if (arguments.tag() != Tag::kTuple && arguments.tag() != Tag::kTupleInTuple) {
    return fail(r.at, "pickle: call arguments are not a tuple");
  }
  r.top -= 2;
  if (arguments.tag() == Tag::kTupleInTuple && tag == Tag::kCall && callable == graph_.shape_class_) {
    return push(r, arguments.as(Tag::kShape));
  }
  const std::uint64_t place = allocate(r, 4);
  if (place == 0) return false;
  Node* to = &arena(place);
  to[0] = callable;
  to[1] = arguments;
  to[2] = Node();
  to[3] = Node();
  return push(r, Node::at_place(tag, place));
}

[[gnu::always_inline]] inline bool Machine::build(Registers& r) {
  if (r.depth() < 2) return fail(r.at, kTooFew);
  const Node state = *--r.top;
  const Node target = r.top[-1];
  if (target.tag() != Tag::kInstance && target.tag() != Tag::kCall) {
    return fail(r.at, "pickle: BUILD on an object without a state");
  }
  const std::size_t place = target.offset();
  if (arena(place + 2).is_set()) return fail(r.at, "pickle: BUILD twice on one object", ErrorCode::kUnsupported);
  arena(place + 2) = state;
  if (fold_handler_ == nullptr || target.tag() != Tag::kInstance || place < pinned_ || arena(place + 3).is_set() ||
      arena(place).tag() != Tag::kGlobal) {
    return true;
  }
  if (const std::optional<std::uint64_t> folded = fold_handler_->fold(graph_, target)) {
    recogniser_.end(place, r.at, memoized_, arena(place), *folded);
    r.top[-1] = Node::make(Tag::kFolded, *folded);
    arena_end_ = place;
  }
  return true;
}

// A tuple is on top of the stack. If torch.Size lies below and the following opcodes call torch.Size with the tuple,
// carries out the opcodes here.
[[gnu::always_inline]] inline bool Machine::shape(Registers& r) {
  const bool is_memoized = next_is(r, kIntoCall);
  if ((!is_memoized && !next_is(r, kIntoCallBare)) || numbered_memo_ || r.depth() < 2) return true;
  const Node dimensions = r.top[-1];
  if (!(r.top[-2] == graph_.shape_class_) || dimensions.tag() != Tag::kTuple) return true;
  r.at += is_memoized ? kIntoCall.length : kIntoCallBare.length;
  if (is_memoized) {
    put(memoized_, dimensions);
    put(memoized_ + 1, dimensions.as(Tag::kTupleInTuple));
    put(memoized_ + 2, dimensions.as(Tag::kShape));
    memoized_ += 3;
  }
  --r.top;
  r.top[-1] = dimensions.as(Tag::kShape);
  return true;
}

// Carries out EMPTY_TUPLE. If a class is on top of the stack and the following opcodes make an instance of the class
// and open a dict for its state, carries out the opcodes too.
[[gnu::always_inline]] inline bool Machine::new_with_dict(Registers& r) {
  if (r.depth() > 0 && !numbered_memo_) {
    const std::byte* at = r.at;
    if (const auto found = recogniser_.find(at, r.top[-1], memoized_)) {
      r.at = at;
      r.top[-1] = Node::make(Tag::kFolded, found->folded);
      memoized_ += found->memoized;
      return true;
    }
  }
  const bool is_memoized = next_is(r, kIntoInstance);
  if ((!is_memoized && !next_is(r, kIntoInstanceBare)) || numbered_memo_ || r.depth() < 1) {
    return push(r, Node::at_place(Tag::kTuple, 0));
  }
  constexpr std::size_t kInstanceWords = 4;
  constexpr std::size_t kDictWords = 2;
  const std::uint64_t place = allocate(r, kInstanceWords + kDictWords);
  if (place == 0) return false;
  recogniser_.begin(place, r.at, memoized_);
  r.at += is_memoized ? kIntoInstance.length : kIntoInstanceBare.length;
  Node* to = &arena(place);
  to[0] = r.top[-1];
  to[1] = Node::at_place(Tag::kTuple, 0);
  for (std::size_t i = 2; i < kInstanceWords + kDictWords; ++i) to[i] = Node();
  const Node instance = Node::at_place(Tag::kInstance, place);
  const Node state = Node::at_place(Tag::kDict, place + kInstanceWords);
  r.top[-1] = instance;
  if (is_memoized) {
    put(memoized_, instance);
    put(memoized_ + 1, state);
    memoized_ += 2;
  }
  if (!push(r, state)) return false;
  mark(r);
  return true;
}

bool Machine::global(Registers& r, std::string_view module, std::string_view name) {
  constexpr std::size_t kBytesMax = 1024;  // each object copies the names, and each mention hashes the names
  if (std::max(module.size(), name.size()) > kBytesMax) {
    return fail(r.at, "pickle: global name longer than 1024 bytes", ErrorCode::kUnsupported);
  }
  const Node node = Node::make(Tag::kGlobal, graph_.globals_.number_of({module, name}));
  if (module == "torch" && name == "Size") graph_.shape_class_ = node;
  return push(r, node);
}

bool Machine::global_line(Registers& r) {
  const std::string_view module = line(r);
  const std::string_view name = line(r);
  return global(r, module, name);
}

std::string_view Machine::line(Registers& r) const {
  const char* begin = reinterpret_cast<const char*>(r.at);
  // The scan found the line's end. memchr(), because strchr() would stop at a zero byte in the name.
  const auto left = static_cast<std::size_t>(graph_.input_.data() + graph_.input_.size() - r.at);
  const char* end = static_cast<const char*>(std::memchr(begin, '\n', left));
  const std::string_view text(begin, static_cast<std::size_t>(end - begin));
  r.at += text.size() + 1;
  return text;
}

bool Machine::stack_global(Registers& r) {
  if (r.depth() < 2) return fail(r.at, kTooFew);
  if (r.top[-1].tag() != Tag::kText || r.top[-2].tag() != Tag::kText) {
    return fail(r.at, "pickle: STACK_GLOBAL name is not text");
  }
  const std::string_view name = graph_.text(r.top[-1]);
  const std::string_view module = graph_.text(r.top[-2]);
  r.top -= 2;
  return global(r, module, name);
}

// `place`: of the number in the input, or kBytesFollow.
bool Machine::push_integer(Registers& r, std::span<const std::byte> number, std::uint64_t place) {
  const bool is_big = number.size() > sizeof(std::int64_t);
  const std::uint64_t word = is_big ? place : static_cast<std::uint64_t>(small_integer(number));
  const Node inside = Node::make(Tag::kInteger, word);
  if (!is_big && static_cast<std::uint64_t>(graph_.integer(inside)) == word) return push(r, inside);
  const bool is_copied = is_big && place == Node::kBytesFollow;
  const std::uint64_t to = allocate(r, is_copied ? 3 + number.size() / sizeof(Node) : 2);
  if (to == 0) return false;
  arena(to) = Node(word);
  arena(to + 1) = Node(number.size());
  if (is_copied) std::memcpy(static_cast<void*>(&arena(to + 2)), number.data(), number.size());
  return push(r, Node::at_place(is_big ? Tag::kBigInteger : Tag::kLong, to));
}

bool Machine::long_integer(Registers& r, std::size_t length_bytes) {
  const std::uint64_t length =
      length_bytes == 1 ? load_little_endian<std::uint8_t>(r.at) : load_little_endian<std::uint32_t>(r.at);
  const std::span<const std::byte> number = shortest(std::span(r.at + length_bytes, static_cast<std::size_t>(length)));
  r.at += length_bytes + length;
  return push_integer(r, number, static_cast<std::uint64_t>(number.data() - graph_.input_.data()));
}

// INT and LONG. Protocol 1 writes False and True as INT 00 and INT 01.
bool Machine::decimal(Registers& r, bool is_long) {
  const std::string_view text = line(r);
  if (!is_long && (text == "00" || text == "01")) return push(r, Node::make(text == "01" ? Tag::kTrue : Tag::kFalse));
  const std::optional<std::vector<std::byte>> number = decimal_integer(text);
  if (!number) return fail(r.at, "pickle: a number that is no decimal integer, or has too many digits");
  return push_integer(r, *number, Node::kBytesFollow);
}

// The opcodes of which metadata mostly consists.
bool Machine::execute() {
  const std::byte* const input = graph_.input_.data();
  Registers r{saved_.at, saved_.top, saved_.fence};
  const auto small = [](std::uint64_t number) { return Node::make(Tag::kInteger, number); };
  bool ok = true;
  while (ok) {
    switch (std::to_integer<std::uint8_t>(*r.at++)) {
      case kBinGet:
        ok = get(r, load_little_endian<std::uint8_t>(r.at));
        r.at += 1;
        break;
      case kLongBinGet:
        ok = get(r, load_little_endian<std::uint32_t>(r.at));
        r.at += 4;
        break;
      case kMemoize: ok = memoize(r); break;
      case kBinInt1: ok = push(r, small(load_little_endian<std::uint8_t>(r.at++))); break;
      case kBinInt2:
        r.at += 2;
        ok = push(r, small(load_little_endian<std::uint16_t>(r.at - 2)));
        break;
      case kBinInt: {
        r.at += 4;
        const auto number = static_cast<std::int32_t>(load_little_endian<std::uint32_t>(r.at - 4));
        ok = push(r, small(static_cast<std::uint64_t>(number)));
        break;
      }
      case kShortBinUnicode: {
        const Node text = Node::make(Tag::kText, static_cast<std::uint64_t>(r.at - 1 - input));
        r.at += 1 + load_little_endian<std::uint8_t>(r.at);
        ok = push(r, text);
        break;
      }
      case kMark: mark(r); break;
      case kEmptyTuple: ok = new_with_dict(r); break;
      case kTuple1: ok = tuple(r, 1, Tag::kTuple) && shape(r); break;
      case kTuple2: ok = tuple(r, 2, Tag::kTuple) && shape(r); break;
      case kTuple3: ok = tuple(r, 3, Tag::kTuple) && shape(r); break;
      case kTuple: {
        const std::size_t count = r.depth();
        ok = close_mark(r) && tuple(r, count, Tag::kTuple) && shape(r);
        break;
      }
      case kEmptyDict: ok = container(r, Tag::kDict); break;
      case kSetItems: ok = extend_since_mark(r, Tag::kDict); break;
      case kReduce: ok = call(r, Tag::kCall); break;
      case kNewObj: ok = call(r, Tag::kInstance); break;
      case kBuild: ok = build(r); break;
      case kStop:
        saved_.top = r.top;
        saved_.fence = r.fence;
        saved_.at = r.at;
        return true;
      default: ok = spilled(r, [this] { return execute_rare(); }); break;
    }
  }
  return false;
}

bool Machine::execute_rare() {
  Registers r = saved_;
  const auto opcode = std::to_integer<std::uint8_t>(r.at[-1]);
  const auto place = static_cast<std::uint64_t>(r.at - 1 - graph_.input_.data());
  const auto counted = [&](Tag tag, std::size_t length_bytes, std::uint64_t length) {
    r.at += length_bytes + length;
    return push(r, Node::make(tag, place));
  };
  const auto carry_out = [&] {
    switch (opcode) {
      case kProto: r.at += 1; return true;
      case kFrame: r.at += 8; return true;
      case kNone: return push(r, Node::make(Tag::kNone));
      case kNewTrue: return push(r, Node::make(Tag::kTrue));
      case kNewFalse: return push(r, Node::make(Tag::kFalse));
      case kBinFloat: return counted(Tag::kReal, 8, 0);
      case kLong1: return long_integer(r, 1);
      case kLong4: return long_integer(r, 4);
      case kInt:
      case kLong: return decimal(r, opcode == kLong);
      case kShortBinString: return counted(Tag::kText, 1, load_little_endian<std::uint8_t>(r.at));
      case kBinString:
      case kBinUnicode: return counted(Tag::kText, 4, load_little_endian<std::uint32_t>(r.at));
      case kBinUnicode8: return counted(Tag::kText, 8, load_little_endian<std::uint64_t>(r.at));
      case kShortBinBytes: return counted(Tag::kBytes, 1, load_little_endian<std::uint8_t>(r.at));
      case kBinBytes: return counted(Tag::kBytes, 4, load_little_endian<std::uint32_t>(r.at));
      case kBinBytes8:
      case kByteArray8: return counted(Tag::kBytes, 8, load_little_endian<std::uint64_t>(r.at));
      case kEmptyList: return container(r, Tag::kList);
      case kEmptySet: return container(r, Tag::kSet);
      case kAppend: return extend(r, Tag::kList, 1);
      case kAppends: return extend_since_mark(r, Tag::kList);
      case kSetItem: return extend(r, Tag::kDict, 2);
      case kAddItems: return extend_since_mark(r, Tag::kSet);
      case kGlobal: return global_line(r);
      case kStackGlobal: return stack_global(r);
      default: return execute_stack(r, opcode);
    }
  };
  const bool ok = carry_out();
  saved_ = r;
  return ok;
}

// Rare opcodes that need an object on the stack.
bool Machine::execute_stack(Registers& r, std::uint8_t opcode) {
  const std::size_t count = r.depth();
  if (opcode == kFrozenSet) return close_mark(r) && tuple(r, count, Tag::kFrozenSet);
  if (opcode == kPopMark || (opcode == kPop && count == 0 && !fences_.empty())) {  // Python's POP may remove a mark
    r.top -= count;
    return close_mark(r);
  }
  if (count == 0) return fail(r.at, kTooFew);
  switch (opcode) {
    case kPop: r.top -= 1; return true;
    case kDup:
      pinned_ = arena_end_;  // two entries of the stack are one object
      return push(r, r.top[-1]);
    case kBinPut:
    case kLongBinPut:
      numbered_memo_ = true;
      put(opcode == kBinPut ? load_little_endian<std::uint8_t>(r.at) : load_little_endian<std::uint32_t>(r.at),
          r.top[-1]);
      r.at += opcode == kBinPut ? 1 : 4;
      return true;
    case kBinPersId: {
      const std::uint64_t place = allocate(r, 1);
      if (place == 0) return false;
      arena(place) = r.top[-1];
      r.top[-1] = Node::at_place(Tag::kPersistent, place);
      return true;
    }
    case kNewObjEx: {
      const Node keywords = *--r.top;
      if (keywords.tag() == Tag::kDict && graph_.elements(keywords).empty()) return call(r, Tag::kInstance);
      return fail(r.at, "pickle: NEWOBJ_EX with keyword arguments", ErrorCode::kUnsupported);
    }
    default: return fail(r.at, "pickle: opcode that OpcodeScan should have refused", ErrorCode::kInternal);
  }
}

Result<Graph> Machine::run() {
  const std::span<const std::byte> input = graph_.input_;
  if (input.size() > limits_.input_bytes_max) {
    return Error(ErrorCode::kUnsupported, "pickle: larger than allowed")
        .expected("at most " + std::to_string(limits_.input_bytes_max) + " bytes")
        .actual(std::to_string(input.size()));
  }
  CAIRN_TRY_ASSIGN(scan_, OpcodeScan::make(input));
  memo_ = ZeroedArray<Node>(scan_.memo_count());
  saved_.at = input.data();
  idioms_end_ = idioms_end(input);
  if (!grow_stack() || !grow_arena(1) || !execute()) return error();
  if (saved_.depth() != 1 || !fences_.empty()) {
    (void)fail(saved_.at, "pickle: STOP without exactly one object on the stack");
    return error();
  }
  graph_.root_ = saved_.top[-1];
  graph_.arena_.shrink(arena_end_);
  graph_.bytes_consumed_ = scan_.bytes_consumed();
  return std::move(graph_);
}

Result<Graph> parse(std::span<const std::byte> input, const Limits& limits, FoldHandler* fold_handler) {
  return Machine(input, limits, fold_handler).run();
}

}  // namespace cairn::pickle
