// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/guard.h"

namespace ops_transformer {

std::string& last_c_error() noexcept {
  thread_local std::string message;
  return message;
}

}  // namespace ops_transformer
