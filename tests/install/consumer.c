/* SPDX-License-Identifier: Apache-2.0 */
#include <ops_transformer_flash_attention.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  /* All scores are equal: each row is the mean of the values. */
  float Q[4] = {0, 0, 0, 0}, K[4] = {1, 2, 3, 4}, V[4] = {1, 10, 3, 20}, O[4] = {-1, -1, -1, -1};
  if (flash_attention_blocked(Q, K, V, O, 2, 2, 128) != OPS_TRANSFORMER_OK || O[0] != 2 || O[1] != 15 || O[2] != 2 ||
      O[3] != 15) {
    printf("flash_attention_blocked gave %g %g %g %g, %s\n", O[0], O[1], O[2], O[3], ops_transformer_last_error());
    return 1;
  }
  if (flash_attention_blocked(Q, K, V, O, 2, 0, 128) != OPS_TRANSFORMER_INVALID_ARGUMENT ||
      !strstr(ops_transformer_last_error(), "D is 0")) {
    printf("a head of length 0 was not refused: %s\n", ops_transformer_last_error());
    return 1;
  }
  printf("installed library works from C; refused: %s\n", ops_transformer_last_error());
  return 0;
}
