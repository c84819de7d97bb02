// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <vector>

#include "every_header.h"

int main() {
  using namespace ops_transformer;
  Context context;
  const std::vector<float> x{3.0f, 4.0f}, weight{1.0f, 2.0f};
  std::vector<float> out(2);
  rms_norm(context, ConstTensorView(x.data(), DType::f32, {1, 2}), ConstTensorView(weight.data(), DType::f32, {2}),
           TensorView(out.data(), DType::f32, {1, 2}), {.eps = 0.0f});
  const float rms = std::sqrt(12.5f);
  if (std::abs(out[0] - 3.0f / rms) > 1e-6f || std::abs(out[1] - 8.0f / rms) > 1e-6f) {
    std::printf("rms_norm gave %g %g\n", out[0], out[1]);
    return 1;
  }
  try {
    rms_norm(context, ConstTensorView(x.data(), DType::f32, {1, 2}), ConstTensorView(weight.data(), DType::f32, {1}),
             TensorView(out.data(), DType::f32, {1, 2}));
  } catch (const InvalidArgument& error) {
    std::printf("installed library works; refused a wrong weight: %s\n", error.what());
    return 0;
  }
  return 1;
}
