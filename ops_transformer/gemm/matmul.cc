// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/gemm/integer_kernel.h"
#include "ops_transformer/gemm/integer_weights.h"

namespace ops_transformer {
namespace {

// The rows of the largest tile of sums: no more than these need no blocks.
constexpr std::int64_t kMaxTileRows = 6;
constexpr std::int64_t kMaxRowsPerItem = 192;
// Fewer rows than this don't repay an item's reading of all the weights.
constexpr std::int64_t kFewestOwnRows = 32;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

// Blocks of nearly equal depth, whose weights fit a quarter of L2. Shallower ones, that fit L1, load and store the sums
// too often: 445 against 452 GFLOP/s at 512 x 4096 x 4096 bf16, 204 against 222 in f32 at avx2 (Zen 4, Nov 2026).
// 0: one block holds all inputs.
std::int64_t choose_block(std::int64_t num_inputs, std::int64_t bytes, const DeviceSpec& device) {
  const std::int64_t most =
      std::max<std::int64_t>(64, std::int64_t(device.l2_bytes / 4) / divide_up(bytes, num_inputs));
  return num_inputs <= most ? 0 : round_up(divide_up(num_inputs, divide_up(num_inputs, most)), 64);
}

struct Split {
  std::int64_t rows, tiles;
};

// Cycles until the last thread is done: each item costs its start and, for each panel, the larger of its arithmetic and
// of reading its weights. Threads finish half an item apart, but those that read much less: the late one has the whole
// bandwidth. One row by the matrices of a 135M llama, out of cache: 2 items each 82-92 % of a pure read, 4 79-92 %, 8
// 74-86 % (Zen 4, 2 threads, Nov 2026).
double cycles_of(const Split& split, const MatmulProblem& problem, std::int64_t tile_bytes, const DeviceSpec& device,
                 int num_threads) {
  constexpr double kBytesPerCycle = 8, kCyclesPerItem = 1000, kCyclesPerPanel = 300;
  const double rows = double(std::min(split.rows, problem.num_rows));
  const double flops_per_tile = 2 * rows * double(kTileOutputs * problem.num_inputs);
  const double compute = flops_per_tile / flops_per_cycle(problem, device);
  const double read = double(tile_bytes) / kBytesPerCycle, cycles_per_tile = std::max(compute, read);
  // A part of a panel has fewer sums to hide latencies behind: 6 x 2 vectors reach 0.89-0.95 of 6 x 4 (Zen 4, 2
  // threads, Nov 2026).
  const std::int64_t whole = split.tiles / kTilesPerPanel * kTilesPerPanel, rest = split.tiles - whole;
  const double cost = kCyclesPerItem + kCyclesPerPanel * double(divide_up(split.tiles, kTilesPerPanel)) +
                      cycles_per_tile * (double(whole) + double(rest) / 0.9);
  const std::int64_t items = divide_up(problem.num_rows, split.rows) * divide_up(problem.num_tiles, split.tiles);
  return cost * (double(divide_up(items, num_threads)) + (read > compute ? 0.1 : 0.5));
}

Split choose_split(const MatmulProblem& problem, std::int64_t granule, std::int64_t tile_bytes,
                   const DeviceSpec& device, int num_threads) {
  Split best{};
  double best_cycles = 0;
  const std::int64_t fewest = divide_up(problem.num_rows, kMaxRowsPerItem);
  std::int64_t last_rows = 0;
  for (std::int64_t row_items = fewest; row_items <= fewest + 3; ++row_items) {
    const std::int64_t rows = round_up(divide_up(problem.num_rows, row_items), granule);
    if (rows == last_rows) break;
    last_rows = rows;
    std::int64_t last_tiles = 0;
    for (std::int64_t shares : {1, 2, 3, 4, 6, 8, 12, 16, 32}) {
      // Pairs of tiles stay together; past one panel, whole panels unless the outputs are few.
      std::int64_t tiles = round_up(divide_up(problem.num_tiles, num_threads * shares), 2);
      if (tiles > 2 * kTilesPerPanel) tiles = round_up(tiles, kTilesPerPanel);
      if (tiles == last_tiles) continue;
      last_tiles = tiles;
      const Split split{rows, tiles};
      const double cycles = cycles_of(split, problem, tile_bytes, device, num_threads);
      if (best.rows == 0 || cycles < best_cycles) {
        best = split;
        best_cycles = cycles;
      }
    }
  }
  return best;
}

// Rows of each item where every item takes all tiles. In rows' worth of time: the busiest thread's rows, a start and a
// reading of all weights for each of its items, and a part of an item by which threads finish apart.
std::int64_t choose_rows(std::int64_t num_rows, std::int64_t granule, int num_threads) {
  std::int64_t best = 0;
  double best_cost = 0;
  const std::int64_t fewest = divide_up(num_rows, num_threads * kMaxRowsPerItem);
  for (std::int64_t items_per_thread = fewest; items_per_thread <= fewest + 8; ++items_per_thread) {
    const std::int64_t rows = round_up(divide_up(num_rows, num_threads * items_per_thread), granule);
    const std::int64_t rounds = divide_up(divide_up(num_rows, rows), num_threads);
    const double cost = double(rounds * rows) + 4.0 * double(rounds) + 0.1 * double(rows);
    if (best == 0 || cost < best_cost) {
      best = rows;
      best_cost = cost;
    }
  }
  return best;
}

// The first lines of the weights from a tile on, for a thread that has other work before it reads them.
void prefetch_weights(const MultiplyArgs& args, std::int64_t tile, std::int64_t num_tiles) {
  constexpr std::int64_t kBytes = 8192;
  if (tile >= num_tiles) return;
  const std::int64_t bytes = std::min(kBytes, (num_tiles - tile) * args.tile_bytes);
  const std::byte* const first = args.weights + tile * args.tile_bytes;
  for (std::int64_t i = 0; i < bytes; i += std::int64_t(kAlignment)) __builtin_prefetch(first + i);
}

}  // namespace

double flops_per_cycle(const MatmulProblem& problem, const DeviceSpec& device) {
  return device.flops_per_cycle(problem.arithmetic == Arithmetic::exact ? DType::f32 : problem.weights);
}

MatmulPlan plan_matmul(const MatmulProblem& problem, const DeviceSpec& device, int num_threads) {
  const WeightFormat& format = *find_weight_format(problem.weights);
  MatmulPlan plan;
  plan.method = &format.method(problem.arithmetic);
  plan.prepares = problem.has_prologue || !plan.method->reads_as_it_lies(problem.x, problem.num_inputs, device.isa);
  plan.rows_in_order = problem.rows_in_order;
  plan.scaling = problem.scaling;
  plan.prepared_row_bytes = std::int64_t(plan.method->prepared_row_bytes(problem.num_inputs, problem.scaling));
  if (problem.num_rows == 0 || problem.num_tiles == 0) return plan;
  const auto tile_bytes = std::int64_t(format.tile_bytes(problem.num_inputs, problem.scaling));
  // Rows that one core prepares and another reads cross between their caches: at 512 rows of 576 inputs quantising took
  // 185 us that way and 42 us in the items, of 780 us with the matmul (q4_1, Zen 4, 2 threads, Nov 2026).
  plan.prepares_in_items = plan.prepares && !plan.rows_in_order && problem.num_rows >= num_threads * kFewestOwnRows;
  const std::int64_t granule = plan.method->row_granule;
  const Split split = plan.prepares_in_items
                          ? Split{choose_rows(problem.num_rows, granule, num_threads), round_up(problem.num_tiles, 2)}
                          : choose_split(problem, granule, tile_bytes, device, num_threads);
  plan.rows_per_item = split.rows;
  plan.tiles_per_item = split.tiles;
  plan.num_row_items = divide_up(problem.num_rows, split.rows);
  plan.num_tile_items = divide_up(problem.num_tiles, split.tiles);
  if (plan.method->blocks_inputs && problem.num_inputs > 0 && problem.num_rows > kMaxTileRows) {
    plan.tiles_per_block =
        std::min<std::int64_t>(problem.num_tiles, device.vector_bytes == 4 * kTileOutputs ? kTilesPerPanel : 1);
    plan.inputs_per_block = choose_block(problem.num_inputs, plan.tiles_per_block * tile_bytes, device);
  }
  return plan;
}

std::string describe(const MatmulPlan& plan) {
  return fmt::format("{}{}, {} x {} items of {} rows x {} outputs{}", plan.method->name,
                     plan.prepares_in_items ? ", each prepares its rows"
                     : plan.prepares        ? ", x prepared"
                                            : "",
                     plan.num_row_items, plan.num_tile_items, plan.rows_per_item, plan.tiles_per_item * kTileOutputs,
                     plan.inputs_per_block ? fmt::format(", inputs in blocks of {}", plan.inputs_per_block) : "");
}

namespace {

// Brings rows of x into the method's form.
class Preparation {
 public:
  Preparation(CallScope& call, const MatmulPlan& plan, const ConstTensorView& x, const RowPrologue* prologue,
              const RowSource& source, const IntegerArgs& integers)
      : prepare_(plan.method->prepare->at(call.context().isa())), prologue_(prologue), source_(source) {
    all_.x = x.data();
    all_.num_inputs = x.size(1);
    all_.x_stride = x.stride(0);
    all_.prepared_row_bytes = plan.prepared_row_bytes;
    all_.x_dtype = x.dtype();
    all_.group_len = plan.scaling.group_len;
    all_.groups_at = integers.groups_at;
    all_.x_scales = source.x_scales;
    all_.x_scale_stride = source.x_scale_stride;
    if (!prologue) return;
    made_len_ = align_up(std::size_t(x.size(1)), 16);
    made_ = call.arena().allocate<float>(std::size_t(call.num_threads()) * made_len_);  // a row for each worker
  }

  // Rows [first, last), row `first` at `target`.
  void run(std::int64_t first, std::int64_t last, std::byte* target, int worker) const {
    if (!prologue_ && !source_.gather) return prepare_from(first, last - first, target);
    for (std::int64_t r = first; r < last; ++r, target += all_.prepared_row_bytes) {
      const std::int64_t row = source_.gather ? source_.gather[r] : r;
      if (!prologue_) {
        prepare_from(row, 1, target);
        continue;
      }
      PrepareArgs args = all_;
      float* const made = made_.data() + std::size_t(worker) * made_len_;
      prologue_->make_row(prologue_->args, row, made);
      args.x = made;
      args.x_dtype = DType::f32;
      args.prepared = target;
      if (args.x_scales) args.x_scales += row * args.x_scale_stride;
      prepare_(args, 0, 1);
    }
  }

 private:
  void prepare_from(std::int64_t row, std::int64_t num_rows, std::byte* target) const {
    PrepareArgs args = all_;
    args.x = static_cast<const std::byte*>(all_.x) + row * all_.x_stride * std::int64_t(element_bytes(all_.x_dtype));
    args.prepared = target;
    if (args.x_scales) args.x_scales += row * args.x_scale_stride;
    prepare_(args, 0, num_rows);
  }

  PrepareFn* prepare_;
  const RowPrologue* prologue_;
  const RowSource& source_;
  PrepareArgs all_{};
  std::size_t made_len_ = 0;
  std::span<float> made_;
};

IntegerArgs integer_args(const PackedWeights& weights, const RowSource& source) {
  const IntegerLayout layout = integer_layout(weights.dtype(), weights.num_inputs(), weights.scaling());
  IntegerArgs args{};
  args.group_len = layout.group_len;
  args.num_groups = layout.num_groups;
  args.codes_bytes = layout.codes_bytes;
  args.group_bytes = layout.group_bytes;
  args.groups_at = integer_codes_bytes(weights.num_inputs());
  args.code_zero = code_of_zero(weights.dtype());
  args.x_zero = source.x_zero;
  args.scales = weights.scaling().scales;
  args.has_zeros = weights.scaling().has_zeros;
  args.raw = source.raw;
  return args;
}

}  // namespace

void run_matmul(CallScope& call, const MatmulPlan& plan, const ConstTensorView& x, const PackedWeights& weights,
                EpilogueFn* epilogue, const EpilogueArgs& epilogue_args, const RowPrologue* prologue,
                const RowSource& source) {
  const std::int64_t num_rows = source.num_rows >= 0 ? source.num_rows : x.size(0);
  const std::int64_t num_tiles = divide_up(weights.num_outputs(), kTileOutputs);
  if (num_rows == 0 || num_tiles == 0) return;
  IntegerArgs integers{};
  if (is_integer_weight(weights.dtype())) integers = integer_args(weights, source);
  MultiplyArgs args{};
  args.weights = weights.data();
  args.tile_bytes = std::int64_t(weights.bytes()) / num_tiles;
  args.num_inputs = weights.num_inputs();
  args.inputs_per_block = plan.inputs_per_block;
  args.epilogue = epilogue;
  args.epilogue_args = &epilogue_args;
  args.integers = &integers;
  const Preparation preparation(call, plan, x, prologue, source, integers);
  const std::int64_t most_rows = std::min(num_rows, plan.rows_per_item);
  std::span<std::byte> prepared;
  if (plan.prepares_in_items) {
    prepared = call.arena().allocate<std::byte>(std::size_t(call.num_threads() * most_rows * plan.prepared_row_bytes));
    args.x_row_bytes = plan.prepared_row_bytes;
  } else if (plan.prepares) {
    prepared = call.arena().allocate<std::byte>(std::size_t(num_rows * plan.prepared_row_bytes));
    const auto at = [&](std::int64_t row) { return prepared.data() + row * plan.prepared_row_bytes; };
    if (prologue && num_rows <= call.num_threads()) {
      // Every thread asks for the weights it will start with before rows keep some of them busy.
      call.parallel_for(std::size_t(call.num_threads()), [&](std::size_t item, int worker) {
        prefetch_weights(args, std::int64_t(item) * plan.tiles_per_item, num_tiles);
        const auto row = std::int64_t(item);
        if (row < num_rows) preparation.run(row, row + 1, at(row), worker);
      });
    } else {
      call.parallel_rows(num_rows, args.num_inputs, [&](std::int64_t first, std::int64_t last, int worker) {
        preparation.run(first, last, at(first), worker);
      });
    }
    args.x = prepared.data();
    args.x_row_bytes = plan.prepared_row_bytes;
  } else {
    args.x = x.as<std::byte>();
    args.x_row_bytes = x.stride(0) * std::int64_t(element_bytes(x.dtype()));
  }
  MultiplyFn* kernel = plan.method->multiply->at(call.context().isa());
  const auto sums_per_worker = std::size_t(most_rows * kTilesPerPanel * kTileOutputs);
  const auto sums = call.arena().allocate<float>(std::size_t(call.num_threads()) * sums_per_worker);
  const auto run_item = [&](std::int64_t row_item, std::int64_t tile_item, int worker) {
    const std::int64_t first_row = row_item * plan.rows_per_item, first_tile = tile_item * plan.tiles_per_item;
    const MultiplyRange range{first_row, std::min(num_rows, first_row + plan.rows_per_item), first_tile,
                              std::min(num_tiles, first_tile + plan.tiles_per_item)};
    float* const worker_sums = sums.data() + std::size_t(worker) * sums_per_worker;
    if (!plan.prepares_in_items) return kernel(args, range, worker_sums);
    std::byte* const own_rows = prepared.data() + worker * most_rows * plan.prepared_row_bytes;
    preparation.run(first_row, range.last_row, own_rows, worker);
    MultiplyArgs own = args;
    own.x = own_rows;
    own.x_first_row = first_row;
    kernel(own, range, worker_sums);
  };
  if (plan.rows_in_order) {
    return call.parallel_for(std::size_t(plan.num_tile_items), [&](std::size_t item, int worker) {
      for (std::int64_t r = 0; r < plan.num_row_items; ++r) run_item(r, std::int64_t(item), worker);
    });
  }
  // Items of one panel of weights stand together, so that it is read from memory once for all rows.
  call.parallel_for(std::size_t(plan.num_row_items * plan.num_tile_items), [&](std::size_t item, int worker) {
    run_item(std::int64_t(item) % plan.num_row_items, std::int64_t(item) / plan.num_row_items, worker);
  });
}

void check_operands(const char* operation, const ConstTensorView& x, const PackedWeights& weights,
                    const TensorView& out, Activation activation) {
  check_shape(operation, "x", x, {-1, weights.num_inputs()});
  check_rows(operation, "x", x);
  check_rank(operation, "out", out, 2);
  check_rows(operation, "out", out);
  check_output(operation, "out", out);
  check_no_overlap(operation, "out", out, "x", x);
  const ConstTensorView packed(weights.data(), DType::u8, {std::int64_t(weights.bytes())});
  check_no_overlap(operation, "out", out, "weights", packed);
  if (activation > kLastActivation) {
    invalid(operation, fmt::format("activation is {}, must be 0...{}", int(activation), int(kLastActivation)));
  }
}

void check_matmul(const char* operation, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
                  std::int64_t num_columns, Activation activation) {
  check_shape(operation, "x", x, {-1, weights.num_inputs()});
  check_dtype(operation, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_shape(operation, "out", out, {x.size(0), num_columns});
  check_dtype(operation, "out", out, {DType::f32, DType::bf16, DType::f16});
  check_operands(operation, x, weights, out, activation);
}

}  // namespace ops_transformer
