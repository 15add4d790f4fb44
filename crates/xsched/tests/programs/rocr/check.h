// What the programs for AMD's runtime share.
#pragma once
#include <hip/hip_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                                     \
    do {                                                                                                \
        hipError_t error_ = (call);                                                                     \
        if (error_ != hipSuccess) {                                                                     \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, hipGetErrorName(error_)); \
            std::_Exit(2);                                                                              \
        }                                                                                               \
    } while (0)

// A random number generator with the same results everywhere.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 2654435761u + 88172645463325252u) {}
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state * 2685821657736338717u >> 11;
    }
    uint64_t below(uint64_t limit) { return limit == 0 ? 0 : next() % limit; }
};
