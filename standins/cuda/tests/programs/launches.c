/*
  * Launches that the driver rejects at once: they measure the cost of the path to the driver and back.
  *
  *   launches own|default COUNT      on a stream of its own or on the default stream; prints the nanoseconds per launch
 */
#include "gpu.h"

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    long count = atol(argv[2]);
    CUstream stream = NULL;
    open_gpu();
    if (strcmp(argv[1], "own") == 0) MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    /* From here on the library tracks the stream. */
    MUST(spin(stream, 1000));
    MUST(cuStreamSynchronize(stream));
    uint64_t begun = now_ns();
    for (long n = 0; n < count; n++) EXPECT(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != 0);
    printf("%.2f\n", (double)(now_ns() - begun) / (double)count);
    return 0;
}
