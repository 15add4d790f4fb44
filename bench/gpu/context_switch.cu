// Measures how long an NVIDIA GPU takes to switch from one process to another, without XSched: a lower bound for any
// scheduler that preempts another process.
//
//   nvcc -O2 -o /tmp/context_switch bench/gpu/context_switch.cu && /tmp/context_switch
//
// Another process runs kernels until it is stopped, and then idles for a given time. Then this process launches an empty
// kernel and waits for it, twice: the first launch includes the context switch. Prints one line of JSON per idle time.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

struct Shared {
    volatile bool work, idle, over;
};

__global__ void spin(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles;) {
    }
}

__global__ void nothing() {}

static void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static double now_us() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void spin_for(double us) {
    for (double until = now_us() + us; now_us() < until;) {
    }
}

static void run_other_process(Shared *shared) {
    check(cudaFree(nullptr), "a context for the other process");
    for (shared->idle = true; !shared->over;) {
        if (!shared->work) continue;
        for (shared->idle = false; shared->work;) {
            for (int n = 0; n < 4; n++) spin<<<1056, 256>>>(90'000);
            check(cudaDeviceSynchronize(), "the other process");
        }
        shared->idle = true;
    }
}

static void wait_until(Shared *shared, bool idle, pid_t other) {
    while (shared->idle != idle)
        if (waitpid(other, nullptr, WNOHANG) != 0) exit(1);
}

static double launch_us() {
    double start = now_us();
    nothing<<<1, 1>>>();
    check(cudaDeviceSynchronize(), "a kernel");
    return now_us() - start;
}

static double percentile(std::vector<double> &all, double part) {
    std::sort(all.begin(), all.end());
    return all[std::min(all.size() - 1, static_cast<size_t>(all.size() * part))];
}

int main() {
    void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    Shared *shared = static_cast<Shared *>(memory);
    // Forked before a context exists, because a child cannot use its parent's.
    pid_t other = fork();
    if (other == 0) {
        run_other_process(shared);
        _exit(0);
    }
    check(cudaFree(nullptr), "a context");
    launch_us();
    wait_until(shared, true, other);
    // A negative time: the other process does not run kernels at all.
    for (double idle_us : {-1., 0., 50., 200., 1000., 5000.}) {
        std::vector<double> first, second;
        for (int n = 0; n < 150; n++) {
            shared->work = idle_us >= 0;
            if (shared->work) wait_until(shared, false, other);
            spin_for(2000);
            shared->work = false;
            wait_until(shared, true, other);
            spin_for(idle_us);
            first.push_back(launch_us());
            second.push_back(launch_us());
        }
        printf("{\"other\": \"%s\", \"idle_for_us\": %.0f, \"first_p50_us\": %.1f, \"first_p99_us\": %.1f, \"second_p50_us\": %.1f}\n",
               idle_us < 0 ? "never worked" : "has worked", std::max(idle_us, 0.), percentile(first, .5), percentile(first, .99),
               percentile(second, .5));
        fflush(stdout);
    }
    shared->over = true;
    waitpid(other, nullptr, 0);
}
