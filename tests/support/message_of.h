// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "ops_transformer/base/error.h"

namespace ops_transformer::test {

/// What the InvalidArgument that the call throws says; empty where it throws none.
template <class Call>
std::string message_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace ops_transformer::test
