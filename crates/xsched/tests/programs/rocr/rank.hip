// One rank of a job on an AMD GPU: a kernel and a collective in each round. It opens the collectives library and looks its functions
// up, as programs in Python do.
//
//   rank LIBRARY RANK RANKS ROUNDS KERNEL_US     a rank, on the GPU with its number
//
// Prints the number of each round, waits for every fourth one, and prints "done" at the end. With ROUNDS 0 it reads the number of
// rounds from its input while it runs.
#include <dlfcn.h>
#include <poll.h>
#include "../nccl_standin.h"
#include "check.h"

__global__ void spin(unsigned long nanoseconds, unsigned long label) { asm volatile("" ::"s"(nanoseconds), "s"(label)); }
__global__ void increment(unsigned long *counter) { atomicAdd((unsigned long long *)counter, 1ull); }

template <typename Function>
static Function *look_up(void *library, const char *name) {
    void *found = library ? dlsym(library, name) : nullptr;
    if (!found) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::_Exit(2);
    }
    return (Function *)found;
}

// The number of rounds, or 0 if it is not in the input yet.
static long rounds_in_input() {
    char line[32];
    pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) == 1 && fgets(line, sizeof line, stdin) ? atol(line) : 0;
}

#define COLLECTIVE(name, ...)                                                        \
    do {                                                                             \
        int code_ = look_up<decltype(name)>(library, #name)(__VA_ARGS__);            \
        if (code_ != 0) {                                                            \
            std::fprintf(stderr, "%s returned %d\n", #name, code_);                  \
            std::_Exit(2);                                                           \
        }                                                                            \
    } while (0)

int main(int argc, char **argv) {
    if (argc < 6) return 64;
    int rank = atoi(argv[2]), ranks = atoi(argv[3]);
    long rounds = atol(argv[4]);
    unsigned long ns = strtoul(argv[5], nullptr, 10) * 1000, *counter, counted = 0;
    setvbuf(stdout, nullptr, _IOLBF, 0);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    ncclUniqueId id;
    ncclComm_t comm;
    hipStream_t stream;
    CHECK(hipSetDevice(rank));
    CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    CHECK(hipMalloc(&counter, sizeof *counter));
    CHECK(hipMemset(counter, 0, sizeof *counter));
    CHECK(hipDeviceSynchronize());
    COLLECTIVE(ncclGetUniqueId, &id);
    COLLECTIVE(ncclCommInitRank, &comm, ranks, id, rank);
    for (long round = 1; rounds == 0 || round <= rounds; round++) {
        spin<<<1, 1, 0, stream>>>(ns, (unsigned long)round);
        increment<<<1, 1, 0, stream>>>(counter);
        CHECK(hipGetLastError());
        COLLECTIVE(ncclAllReduce, nullptr, nullptr, 0, 0, 0, comm, stream);
        if (round % 4 == 0 || round == rounds) CHECK(hipStreamSynchronize(stream));
        std::printf("%ld\n", round);
        if (rounds == 0) rounds = rounds_in_input();
    }
    CHECK(hipMemcpy(&counted, counter, sizeof counted, hipMemcpyDeviceToHost));
    COLLECTIVE(ncclCommDestroy, comm);
    if (counted != (unsigned long)rounds) return 1;
    std::printf("done\n");
    return 0;
}
