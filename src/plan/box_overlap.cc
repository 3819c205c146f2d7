// A segment tree that is never built, after Edelsbrunner and Zomorodian, "Fast software for box intersections".
//
// Two intervals overlap exactly if either interval begins inside the other. The search handles the axes in turn, and
// looks for pairs (i, p) in which p begins inside i. On each axis the boxes are numbered by their begins, with ties
// broken by the place in the list. Each begin is then a unique number in 0..n-1, each end is the count of begins before
// the end, and all comparisons keep their results. On one axis:
//
// 1. Take a segment [low, high) of begins, the points P with a begin in the segment, and the intervals I that reach
//    into the segment; the first segment is [0, n).
// 2. An interval that covers the whole segment contains every point of P: these pairs overlap on this axis and continue
//    on the next axis. On the next axis either box may begin inside the other: both orders of each pair are searched.
// 3. Each remaining interval has an end inside the segment. Both halves of the segment are searched in the same way. In
//    a segment with a single begin no interval remains, and the search ends.
// 4. On the last axis the lists are in the order of begins, because steps 2 and 3 keep the order. A merge compares each
//    interval with the first point after the interval's begin.
//
// Correctness: a pair with an overlap on an axis is found in exactly one segment: the uppermost segment within i on the
// path to p's begin. Only pairs with an overlap on all earlier axes reach the next axis: a pair found by the merge
// overlaps on every axis.
//
// Cost: at each of the log2(n) levels of segments, a point is in one segment and an interval has its ends in at most
// two segments. Step 2 therefore takes an interval at most twice per level. An axis costs n log n steps and passes
// lists of n log n boxes in total to the next axis. The merge is linear and stops at the first pair. With d axes, the
// sum is n log n for the sorting, and n log^(d-1) n for the rest.
#include "plan/box_overlap.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace cairn::plan {
namespace {

// Boxes by number, ascending.
using BoxList = std::vector<std::uint32_t>;

class OverlapSearch {
 public:
  OverlapSearch(std::size_t dimensions, std::span<const std::int64_t> boxes, std::size_t count, std::size_t steps_max)
      : dimensions_(dimensions), boxes_(boxes), steps_left_(steps_max) {
    for (std::size_t place = 0; place < count; ++place) {
      bool elements = true;
      for (std::size_t d = 0; d < dimensions; ++d) elements = elements && size(place, d) != 0;
      if (elements) places_.push_back(static_cast<std::uint32_t>(place));
    }
  }

  std::optional<BoxPair> run() {
    if (places_.size() < 2) return std::nullopt;
    for (std::size_t d = 0; d < dimensions_; ++d) {
      if (!all_agree(d)) add_axis(d);
    }
    if (axes_.empty()) return pair_of(0, 1);
    BoxList all(places_.size());
    std::iota(all.begin(), all.end(), 0U);
    return find(all, all, {0, static_cast<std::uint32_t>(all.size())}, axes_.size() - 1);
  }

 private:
  // Half-open, in numbers of begins.
  struct Interval {
    std::uint32_t begin;
    std::uint32_t end;
  };
  static constexpr std::size_t kFewPairs = 64;  // comparing so few pairs directly is as fast as splitting further

  std::int64_t offset(std::size_t place, std::size_t d) const { return boxes_[place * 2 * dimensions_ + d]; }
  std::int64_t size(std::size_t place, std::size_t d) const { return boxes_[(place * 2 + 1) * dimensions_ + d]; }

  bool all_agree(std::size_t d) const {
    return std::ranges::all_of(places_, [&](std::uint32_t place) {
      return offset(place, d) == offset(places_[0], d) && size(place, d) == size(places_[0], d);
    });
  }

  // Numbers the begins of dimension `d`. The first axis also numbers the boxes: step 4 needs the boxes in the order of
  // the first axis.
  void add_axis(std::size_t d) {
    const auto begins_before = [&](std::uint32_t a, std::uint32_t b) { return offset(a, d) < offset(b, d); };
    if (axes_.empty()) sort(places_, begins_before);
    BoxList order(places_.size());
    std::iota(order.begin(), order.end(), 0U);
    if (!axes_.empty()) sort(order, [&](auto a, auto b) { return begins_before(places_[a], places_[b]); });
    std::vector<Interval>& axis = axes_.emplace_back(order.size());
    for (std::uint32_t begin = 0; begin < order.size(); ++begin) {
      const std::uint32_t place = places_[order[begin]];
      const std::int64_t end = offset(place, d) + size(place, d);
      const auto begins_inside = [&](std::uint32_t box) { return offset(places_[box], d) < end; };
      // Mostly few begins lie inside the interval: the search starts near its begin.
      std::size_t reach = 1;
      while (begin + reach < order.size() && begins_inside(order[begin + reach])) reach *= 2;
      const auto from = order.begin() + static_cast<std::ptrdiff_t>(begin + reach / 2);
      const auto to = order.begin() + static_cast<std::ptrdiff_t>(std::min(begin + reach, order.size()));
      axis[order[begin]] = {begin,
                            static_cast<std::uint32_t>(std::partition_point(from, to, begins_inside) - order.begin())};
    }
  }

  // Stable. Chunks are mostly sorted already.
  template <typename Before>
  static void sort(BoxList& boxes, const Before& before) {
    if (!std::is_sorted(boxes.begin(), boxes.end(), before)) std::stable_sort(boxes.begin(), boxes.end(), before);
  }

  // Finds a pair of `intervals` and `points` that overlaps on this axis and on all lower axes, with the point's begin
  // in `segment`.
  std::optional<BoxPair> find(const BoxList& intervals, const BoxList& points, Interval segment, std::size_t axis) {
    if (intervals.empty() || points.empty()) return std::nullopt;
    const std::size_t steps = intervals.size() + points.size();
    if (steps > steps_left_) return std::nullopt;
    steps_left_ -= steps;
    if (axis == 0) return merge(intervals, points);
    if (intervals.size() * points.size() <= kFewPairs) return compare(intervals, points, axis);
    const std::uint32_t middle = segment.begin + (segment.end - segment.begin) / 2;
    BoxList holding;
    BoxList intervals_of[2];
    BoxList points_of[2];
    for (const std::uint32_t box : intervals) {
      const Interval& interval = axes_[axis][box];
      if (interval.begin <= segment.begin && segment.end <= interval.end) {
        holding.push_back(box);
        continue;
      }
      if (interval.begin < middle && segment.begin < interval.end) intervals_of[0].push_back(box);
      if (interval.begin < segment.end && middle < interval.end) intervals_of[1].push_back(box);
    }
    for (const std::uint32_t box : points) points_of[axes_[axis][box].begin < middle ? 0 : 1].push_back(box);

    const Interval all{0, static_cast<std::uint32_t>(places_.size())};
    if (auto found = find(holding, points, all, axis - 1)) return found;
    if (auto found = find(points, holding, all, axis - 1)) return found;
    if (auto found = find(intervals_of[0], points_of[0], {segment.begin, middle}, axis)) return found;
    return find(intervals_of[1], points_of[1], {middle, segment.end}, axis);
  }

  // Step 4.
  std::optional<BoxPair> merge(const BoxList& intervals, const BoxList& points) const {
    auto point = points.begin();
    for (const std::uint32_t interval : intervals) {
      while (point != points.end() && *point < interval) ++point;
      const auto next =
          point != points.end() && *point == interval ? point + 1 : point;  // a box is not a pair with itself
      if (next != points.end() && *next < axes_[0][interval].end) return pair_of(interval, *next);
    }
    return std::nullopt;
  }

  std::optional<BoxPair> compare(const BoxList& intervals, const BoxList& points, std::size_t axis) const {
    for (const std::uint32_t a : intervals) {
      for (const std::uint32_t b : points) {
        if (a != b && meet(a, b, axis)) return pair_of(a, b);
      }
    }
    return std::nullopt;
  }

  // Whether `a` and `b` overlap on this axis and on all lower axes.
  bool meet(std::uint32_t a, std::uint32_t b, std::size_t axis) const {
    for (std::size_t i = 0; i <= axis; ++i) {
      if (axes_[i][a].begin >= axes_[i][b].end || axes_[i][b].begin >= axes_[i][a].end) return false;
    }
    return true;
  }

  BoxPair pair_of(std::uint32_t a, std::uint32_t b) const {
    const auto [low, high] = std::minmax({places_[a], places_[b]});
    return {low, high};
  }

  std::size_t dimensions_;
  std::span<const std::int64_t> boxes_;
  std::size_t steps_left_;
  BoxList places_;  // indices into `boxes_`, by box number
  std::vector<std::vector<Interval>>
      axes_;  // the intervals by box number; one axis per dimension in which the boxes differ
};

}  // namespace

std::optional<BoxPair> find_overlap(std::size_t dimensions, std::span<const std::int64_t> boxes, std::size_t count,
                                    std::size_t steps_max) {
  return OverlapSearch(dimensions, boxes, count, steps_max).run();
}

}  // namespace cairn::plan
